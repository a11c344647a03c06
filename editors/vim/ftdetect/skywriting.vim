" Skywriting scripts are named *.sw, or begin with a line that says so.
autocmd BufNewFile,BufRead *.sw setfiletype skywriting
autocmd BufNewFile,BufRead * if getline(1) =~# '^#!.*\<\%(skywriting\|sw-job\)\>' | setfiletype skywriting | endif
