-- | Count the words of texts: a task of the executor "haskell". A child counts the words of each; a
-- successor, to which this task delegates its output, adds these counts.
module Main (main) where

import Ciel

main :: IO ()
main = serve $ \worker task -> do
  let again executor args =
        executor worker "haskell" [("binary", member "binary" task), ("args", List args)]
      total :: (String -> Int) -> [Json] -> IO ()
      total count refs = do
        texts <- mapM (contents worker) refs
        publish worker 0 (show (sum (map count texts)) ++ "\n")
  case elements (member "args" task) of
    [Text "count", text] -> total (length . words) [text]
    Text "add" : numbers -> total read numbers
    texts -> do
      counts <- mapM (\text -> again spawn [Text "count", text]) texts
      again tailSpawn (Text "add" : concatMap elements counts)
