(* Does the same as where.py. *)
open Ciel

let size ref =
  let file = open_in_bin (path ref) in
  let size_bytes = in_channel_length file in
  close_in file;
  size_bytes

let run task =
  ignore (Sys.command "readlink /proc/self/ns/net >host");
  let host = input_line (open_in "host") in
  let sizes = List.map size (elements (member "proc_pargs" task)) in
  ignore (publish 0 (Printf.sprintf "%s\n%d\n" host (List.fold_left ( + ) 0 sizes)))

let () = serve run
