(* Count the words of texts: a task of the executor "ocaml". If there are several texts, a child
   counts the words of each, and this task is suspended until the children are done. *)
open Ciel

let words text =
  let plain = String.map (function '\n' | '\r' | '\t' -> ' ' | c -> c) text in
  List.length (List.filter (( <> ) "") (String.split_on_char ' ' plain))

let run task =
  let again text = spawn "ocaml" [ ("binary", member "binary" task); ("args", List [ text ]) ] in
  let total =
    match elements (member "args" task) with
    | [ text ] -> words (contents text)
    | texts ->
        let counts = List.concat_map (fun text -> elements (again text)) texts in
        let number ref = int_of_string (String.trim (contents ref)) in
        List.fold_left ( + ) 0 (List.map number counts)
  in
  ignore (publish 0 (string_of_int total ^ "\n"))

let () = serve run
