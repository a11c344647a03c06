-- | The protocol between a task in Haskell and its worker: JSON, in frames on two pipes. Texts are
-- in UTF-8, a byte in each character. The module needs only Haskell 98, and also runs in Hugs.
module Ciel
  ( Json (..), member, elements, Worker, serve, contents, publish, spawn, tailSpawn, request, send
  ) where

import Data.Char (chr, digitToInt, intToDigit, isAlphaNum, isSpace, ord)
import System.Environment (getArgs)
import System.IO
  ( Handle, IOMode (ReadMode, WriteMode), hClose, hFlush, hGetChar, hGetContents, hIsEOF, hPutStr
  , openBinaryFile, stdout
  )

data Json
  = Null
  | Flag Bool
  | Number String -- ^ as it is written
  | Text String
  | List [Json]
  | Object [(String, Json)]

member :: String -> Json -> Json
member key (Object members) = maybe Null id (lookup key members)
member _ _ = Null

elements :: Json -> [Json]
elements (List values) = values
elements _ = []

-- JSON --------------------------------------------------------------------------------------------

instance Show Json where
  showsPrec _ json = case json of
    Null -> showString "null"
    Flag True -> showString "true"
    Flag False -> showString "false"
    Number text -> showString text
    Text text -> quoted text
    List values -> several '[' shows values . showChar ']'
    Object members -> several '{' pair members . showChar '}'
    where
      pair (key, one) = quoted key . showChar ':' . shows one

several :: Char -> (a -> ShowS) -> [a] -> ShowS
several start _ [] = showChar start
several start one (x : xs) = showChar start . one x . foldr (.) id (map next xs)
  where
    next y = showChar ',' . one y

quoted :: String -> ShowS
quoted text = showChar '"' . showString (concatMap escaped text) . showChar '"'
  where
    escaped c
      | c `elem` "\"\\" = ['\\', c]
      | c < ' ' = "\\u00" ++ [intToDigit (ord c `div` 16), intToDigit (ord c `mod` 16)]
      | otherwise = [c]

-- | Parse the value at the beginning of a text; also return the rest of the text.
value :: String -> (Json, String)
value text = case dropWhile isSpace text of
  '{' : rest -> first Object (listed '}' pair rest)
  '[' : rest -> first List (listed ']' value rest)
  '"' : rest -> first Text (string rest)
  rest -> first word (span (\c -> isAlphaNum c || c `elem` "+-.") rest)
  where
    word "null" = Null
    word "true" = Flag True
    word "false" = Flag False
    word number = Number number
    pair rest =
      let (key, after) = string (drop 1 (dropWhile isSpace rest))
      in first ((,) key) (value (drop 1 (dropWhile isSpace after)))

listed :: Char -> (String -> (a, String)) -> String -> ([a], String)
listed end one text = case dropWhile isSpace text of
  c : rest | c == end -> ([], rest)
  ',' : rest -> listed end one rest
  [] -> error "JSON that ends in the middle"
  rest -> let (x, after) = one rest in first (x :) (listed end one after)

string :: String -> (String, String)
string ('"' : rest) = ("", rest)
string ('\\' : 'u' : a : b : c : d : rest) = first (utf8 (foldl hex 0 [a, b, c, d]) ++) (string rest)
  where
    hex number digit = 16 * number + digitToInt digit
string ('\\' : c : rest) = first (maybe c id (lookup c escapes) :) (string rest)
  where
    escapes = zip "bfnrt" "\b\f\n\r\t"
string (c : rest) = first (c :) (string rest)
string [] = error "a text of JSON that does not end"

-- | Workers escape only control codes, so there are no surrogate pairs.
utf8 :: Int -> String
utf8 code
  | code < 0x80 = [chr code]
  | code < 0x800 = [chr (0xc0 + code `div` 64), tailing code]
  | otherwise = [chr (0xe0 + code `div` 4096), tailing (code `div` 64), tailing code]
  where
    tailing bits = chr (0x80 + bits `mod` 64)

first :: (a -> b) -> (a, c) -> (b, c)
first f (x, y) = (f x, y)

-- Messages ----------------------------------------------------------------------------------------

-- | The worker: the pipe to it, and the pipe from it.
data Worker = Worker Handle Handle

send :: Worker -> String -> [(String, Json)] -> IO ()
send (Worker toWorker _) call arguments = do
  let text = show (List [Text call, Object arguments])
      size = length text
  hFlush stdout -- the printed text belongs to this task
  hPutStr toWorker [chr (size `div` 256 ^ place `mod` 256) | place <- [3, 2, 1, 0 :: Int]]
  hPutStr toWorker text
  hFlush toWorker

-- | Read the next message: a call with its arguments, or Nothing at the end.
receive :: Worker -> IO (Maybe (String, Json))
receive (Worker _ fromWorker) = do
  over <- hIsEOF fromWorker
  if over
    then return Nothing
    else do
      size <- mapM (const (hGetChar fromWorker)) [1 .. 4 :: Int]
      text <- mapM (const (hGetChar fromWorker)) [1 .. foldl (\n c -> 256 * n + ord c) 0 size]
      case fst (value text) of
        List [Text call, arguments] -> return (Just (call, arguments))
        other -> ioError (userError ("the worker's message is not a call: " ++ show other))

request :: Worker -> String -> [(String, Json)] -> IO Json
request worker call arguments = do
  send worker call arguments
  message <- receive worker
  case message of
    Just (_, reply) -> return reply
    Nothing -> ioError (userError ("the worker closed the pipe without a reply to " ++ call))

-- | The content of an object that exists, such as an argument of the task.
contents :: Worker -> Json -> IO String
contents worker ref = do
  reply <- request worker "open_ref" [("ref", ref)]
  case member "filename" reply of
    Text name -> openBinaryFile name ReadMode >>= hGetContents
    _ -> ioError (userError ("the worker cannot open the object: " ++ show ref))

publish :: Worker -> Int -> String -> IO ()
publish worker number content = do
  let index = ("index", Number (show number))
  reply <- request worker "open_output" [index]
  case member "filename" reply of
    Text name -> do
      file <- openBinaryFile name WriteMode
      hPutStr file content
      hClose file
    _ -> ioError (userError ("the worker's reply contains no filename: " ++ show reply))
  _ <- request worker "close_output" [index]
  return ()

spawn :: Worker -> String -> [(String, Json)] -> IO Json
spawn worker executor keywords =
  request worker "spawn" (("executor_name", Text executor) : keywords)

-- | Create a task to which this one delegates its outputs.
tailSpawn :: Worker -> String -> [(String, Json)] -> IO ()
tailSpawn worker executor keywords =
  send worker "tail_spawn" (("executor_name", Text executor) : keywords)

-- | Run tasks until the worker closes the pipe.
serve :: (Worker -> Json -> IO ()) -> IO ()
serve run = do
  arguments <- getArgs
  let [_, writeFifo, _, readFifo] = reverse (take 4 (reverse arguments))
  toWorker <- openBinaryFile writeFifo WriteMode -- in this order: each end waits for the other
  fromWorker <- openBinaryFile readFifo ReadMode
  next (Worker toWorker fromWorker)
  where
    next worker = do
      message <- receive worker
      case message of
        Just ("start_task", task) -> do
          run worker task
          send worker "exit" [("keep_process", Text "may_keep")]
          next worker
        _ -> return ()
