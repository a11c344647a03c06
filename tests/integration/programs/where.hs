-- As where.py.
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

-- Hugs would take a second to read them.
size :: Worker -> Json -> IO Integer
size worker ref = do
  reply <- ask worker "open_ref" [("ref", ref)]
  let Text path = member "filename" reply
  file <- openBinaryFile path ReadMode
  bytes <- hFileSize file
  hClose file
  return bytes
