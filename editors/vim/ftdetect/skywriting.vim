" Skywriting scripts are named *.sw, or begin with a `#!` line that names their interpreter.
autocmd BufNewFile,BufRead *.sw setfiletype skywriting
autocmd BufNewFile,BufRead * if getline(1) =~# '^#!.*\<\%(skywriting\|sw-job\)\>' | setfiletype skywriting | endif
