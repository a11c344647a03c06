(* The SDK for tasks in OCaml: JSON, in frames on two pipes; it needs only the standard library.

       ocamlopt ciel.ml task.ml -o task

   References are values of JSON, as they come. Calls that a worker cannot carry out raise Failure.
   docs/programs.md of ciel describes the calls. *)

type json =
  | Null
  | Bool of bool
  | Number of string (* as it is written *)
  | String of string (* in UTF-8 *)
  | List of json list
  | Object of (string * json) list

let member key = function
  | Object members -> ( try List.assoc key members with Not_found -> Null)
  | _ -> Null

let elements = function List elements -> elements | _ -> []

(* --- JSON ------------------------------------------------------------------------------------- *)

let rec print = function
  | Null -> "null"
  | Bool value -> string_of_bool value
  | Number text -> text
  | String text -> quoted text
  | List values -> "[" ^ String.concat "," (List.map print values) ^ "]"
  | Object members ->
      let member (key, value) = quoted key ^ ":" ^ print value in
      "{" ^ String.concat "," (List.map member members) ^ "}"

and quoted text =
  let buffer = Buffer.create (String.length text + 2) in
  let add = function
    | ('"' | '\\') as c -> Printf.bprintf buffer "\\%c" c
    | c when c < ' ' -> Printf.bprintf buffer "\\u%04x" (Char.code c)
    | c -> Buffer.add_char buffer c
  in
  String.iter add text;
  "\"" ^ Buffer.contents buffer ^ "\""

let parse text =
  let at = ref 0 in
  let peek () = text.[!at] in
  let next () = incr at; text.[!at - 1] in
  let rec skip () = match peek () with ' ' | '\t' | '\r' | '\n' -> incr at; skip () | _ -> () in
  let expect c =
    skip ();
    if next () <> c then failwith (Printf.sprintf "no %C at %d of %S" c !at text)
  in
  let string () =
    let buffer = Buffer.create 32 in
    let unicode () =
      let code = int_of_string ("0x" ^ String.sub text !at 4) in
      at := !at + 4;
      Buffer.add_utf_8_uchar buffer (Uchar.of_int code) (* workers escape control codes only *)
    in
    let rec rest () =
      match next () with
      | '"' -> Buffer.contents buffer
      | '\\' ->
          (match next () with
          | 'u' -> unicode ()
          | 'n' -> Buffer.add_char buffer '\n'
          | 't' -> Buffer.add_char buffer '\t'
          | 'r' -> Buffer.add_char buffer '\r'
          | 'b' -> Buffer.add_char buffer '\b'
          | 'f' -> Buffer.add_char buffer '\012'
          | c -> Buffer.add_char buffer c);
          rest ()
      | c -> Buffer.add_char buffer c; rest ()
    in
    expect '"'; rest ()
  in
  let several last one =
    let rec more found =
      let found = one () :: found in
      skip ();
      if next () = last then List.rev found else more found (* after a comma *)
    in
    incr at; skip ();
    if peek () = last then (incr at; []) else more []
  in
  let rec word from =
    match peek () with
    | 'a' .. 'z' | 'A' .. 'Z' | '0' .. '9' | '+' | '-' | '.' -> incr at; word from
    | _ -> String.sub text from (!at - from)
  in
  let rec value () =
    skip ();
    match peek () with
    | '{' -> Object (several '}' member)
    | '[' -> List (several ']' value)
    | '"' -> String (string ())
    | _ -> (
        match word !at with
        | "null" -> Null
        | ("true" | "false") as word -> Bool (bool_of_string word)
        | word -> Number word)
  and member () =
    skip ();
    let key = string () in
    expect ':';
    (key, value ())
  in
  value ()

(* --- messages --------------------------------------------------------------------------------- *)

let argument place = Sys.argv.(Array.length Sys.argv - place)
let to_worker = open_out_bin (argument 3) (* in this order, as each open waits for the worker's *)
let from_worker = open_in_bin (argument 1)

let send call arguments =
  let text = print (List [ String call; Object arguments ]) in
  output_binary_int to_worker (String.length text);
  output_string to_worker text;
  flush_all () (* also the printed text, which belongs to this task *)

let receive () =
  match parse (really_input_string from_worker (input_binary_int from_worker)) with
  | List [ String call; arguments ] -> (call, arguments)
  | other -> failwith ("the worker's message is not a call: " ^ print other)

let request call arguments = send call arguments; snd (receive ())

(* Wait in place until objects exist, or are started as streams: the task holds memory, but no slot.
   All outputs must be closed. *)
let block_on refs =
  send "tail_spawn"
    [ ("executor_name", String "proc"); ("is_fixed", Bool true);
      ("extra_dependencies", List refs) ];
  send "exit" [ ("keep_process", String "must_keep") ];
  match receive () with
  | "start_task", _ -> ()
  | call, _ -> failwith (call ^ " was received instead of a task")

(* Open an object by a call; wait until it can be opened. *)
let rec opened call arguments ref =
  let reply = request call (("ref", ref) :: arguments) in
  match (member "filename" reply, member "error" reply) with
  | String path, _ -> (path, reply)
  | _, String "EWOULDBLOCK" -> block_on [ ref ]; opened call arguments ref
  | _, error -> failwith ("an object cannot be opened: " ^ print error)

(* The path of an object; wait like `block_on`. *)
let path ref = fst (opened "open_ref" [] ref)

let contents ref =
  let file = open_in_bin (path ref) in
  let text = really_input_string file (in_channel_length file) in
  close_in file;
  text

let integer = function
  | Number text -> int_of_string text
  | other -> failwith ("no whole number: " ^ print other)

let id ref =
  match member "__ref__" ref with
  | List (_ :: String id :: _) -> id
  | _ -> failwith ("no reference: " ^ print ref)

(* Read an object that may still be growing: call `f` with each piece, until the object is complete.
   It waits for `chunk` more bytes at a time. A failure of the producer raises Failure. *)
let read_stream ?(chunk = 1) ref f =
  let whole = ("chunk_size", Number (string_of_int chunk)) in
  let path, reply = opened "open_ref_async" [ whole ] ref in
  let is_done = member "done" reply = Bool true in
  let file = open_in_bin path and bytes = Bytes.create 65536 in
  let close () =
    close_in file;
    if not is_done then send "close_stream" [ ("id", String (id ref)); whole ]
  in
  let rec rest position ends_at =
    seek_in file position; (* forget the end of the file *)
    let got = input file bytes 0 (Bytes.length bytes) in
    if got > 0 then (f (Bytes.sub_string bytes 0 got); rest (position + got) ends_at)
    else
      match ends_at with
      | Some size when position >= size -> ()
      | Some size -> failwith (Printf.sprintf "%s ended after %d of %d bytes" (id ref) position size)
      | None ->
          let wanted = ("bytes", Number (string_of_int (position + chunk))) in
          let grown = request "wait_stream" [ ("id", String (id ref)); wanted ] in
          if member "success" grown <> Bool true then
            failwith (Printf.sprintf "%s broke off after %d bytes" (id ref) position);
          let size = integer (member "size" grown) in
          rest position (if member "done" grown = Bool true then Some size else None)
  in
  let is_whole = is_done || member "blocking" reply = Bool true in
  Fun.protect ~finally:close (fun () -> rest 0 (if is_whole then Some 0 else None))

(* Return the entry of a key in the package of the job; Null if there is none. *)
let package key = member "value" (request "package_lookup" [ ("key", String key) ])

(* Add a line to the log of the job. *)
let log text = send "log" [ ("message", String text) ]

(* Add an output of the task, which other tasks find only by its reference; return its number. *)
let allocate prefix =
  integer (member "index" (request "allocate_output" [ ("prefix", String prefix) ]))

(* Open an output, let `f` write it to a channel, and publish it; return a reference to it. With
   `may_stream`, other tasks may read it from now on, as far as it is flushed. After an exception, it
   is not published. *)
let write ?(may_stream = false) index f =
  let index = ("index", Number (string_of_int index)) in
  let options = if may_stream then [ ("may_stream", Bool true) ] else [] in
  match member "filename" (request "open_output" (index :: options)) with
  | String path ->
      let file = open_out_bin path in
      (try f file; close_out file
       with error ->
         close_out_noerr file;
         ignore (request "rollback_output" [ index ]);
         raise error);
      member "ref" (request "close_output" [ index ])
  | _ -> failwith "the worker's reply to open_output contains no filename"

let publish index content = write index (fun file -> output_string file content)

(* Create a task; return a reference to its output, or a list, depending on the executor. Options of
   all tasks are keywords, too: ("slots", Number "2"), ("name", String "sort"). *)
let spawn executor keywords = request "spawn" (("executor_name", String executor) :: keywords)

(* Create a task that takes over the outputs of this one. *)
let tail_spawn executor keywords = send "tail_spawn" (("executor_name", String executor) :: keywords)

(* Run tasks until the worker closes the pipe. An exception fails its task, and ends the program. *)
let rec serve run =
  Printexc.record_backtrace true;
  match receive () with
  | "start_task", task ->
      (try run task
       with error ->
         let trace = Printexc.get_backtrace () in
         send "error" [ ("report", String (Printexc.to_string error ^ "\n" ^ trace)) ];
         exit 1);
      send "exit" [ ("keep_process", String "may_keep") ];
      serve run
  | _ | (exception End_of_file) -> ()
