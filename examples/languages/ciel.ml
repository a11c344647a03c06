(* The protocol between a task in OCaml and its worker: JSON, in frames on two pipes. *)

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

(* The path of an object. The task waits in place until the object exists: it holds memory, but no
   slot. *)
let rec path ref =
  match member "filename" (request "open_ref" [ ("ref", ref) ]) with
  | String path -> path
  | _ ->
      send "tail_spawn"
        [ ("executor_name", String "ocaml"); ("is_fixed", Bool true);
          ("extra_dependencies", List [ ref ]) ];
      send "exit" [ ("keep_process", String "must_keep") ];
      ignore (receive ());
      path ref

let contents ref =
  let file = open_in_bin (path ref) in
  let text = really_input_string file (in_channel_length file) in
  close_in file;
  text

(* Add an output of the task, which other tasks find only by its reference; return its number. *)
let allocate prefix =
  match member "index" (request "allocate_output" [ ("prefix", String prefix) ]) with
  | Number index -> int_of_string index
  | _ -> failwith "the worker's reply to allocate_output contains no index"

(* Write a complete output; return a reference to it. *)
let publish index content =
  let index = ("index", Number (string_of_int index)) in
  (match member "filename" (request "open_output" [ index ]) with
  | String path ->
      let file = open_out_bin path in
      output_string file content;
      close_out file
  | _ -> failwith "the worker's reply to open_output contains no filename");
  member "ref" (request "close_output" [ index ])

let spawn executor keywords = request "spawn" (("executor_name", String executor) :: keywords)
let tail_spawn executor keywords = send "tail_spawn" (("executor_name", String executor) :: keywords)

(* Run tasks until the worker closes the pipe. *)
let rec serve run =
  match receive () with
  | "start_task", task ->
      run task;
      send "exit" [ ("keep_process", String "may_keep") ];
      serve run
  | _ | (exception End_of_file) -> ()
