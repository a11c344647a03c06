-- Does the same as where.py.
module Main (main) where

import Ciel
import System.Cmd (system)
import System.IO

main :: IO ()
main = serve $ \worker task -> do
  _ <- system "readlink /proc/self/ns/net >host"
  host <- readFile "host"
  sizes <- mapM (size worker) (elements (member "proc_pargs" task))
  publish worker 0 (host ++ show (sum sizes) ++ "\n")

-- Asks for the size, since Hugs would need a second to read the object.
size :: Worker -> Json -> IO Integer
size worker ref = do
  reply <- request worker "open_ref" [("ref", ref)]
  let Text path = member "filename" reply
  file <- openBinaryFile path ReadMode
  bytes <- hFileSize file
  hClose file
  return bytes
