" `:make` finds every error of a script; `:copen` lists them.
if exists("current_compiler")
  finish
endif
let current_compiler = "skywriting"

CompilerSet makeprg=ciel\ sw\ check\ %:p:S
CompilerSet errorformat=%Eerror:\ %m,%Wwarning:\ %m,%Z\ \ %f\\,\ line\ %l\\,\ column\ %c,%-G%.%#
