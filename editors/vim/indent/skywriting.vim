" Four columns for each open bracket of any kind, like `ciel sw fmt`.
if exists("b:did_indent")
  finish
endif
let b:did_indent = 1

setlocal expandtab shiftwidth=4 softtabstop=4 nosmartindent
setlocal indentexpr=SkywritingIndent(v:lnum) indentkeys=0{,0},0),0],!^F,o,O
let b:undo_indent = "setlocal expandtab< shiftwidth< softtabstop< smartindent< indentexpr< indentkeys<"

if exists("*SkywritingIndent")
  finish
endif

" The number of brackets that a line opens, minus those that it closes.
function! s:Brackets(line) abort
  let text = substitute(a:line, '\v"(\\.|[^"\\])*"|''(\\.|[^''\\])*''|//.*|/\*.{-}\*/', '', 'g')
  return strlen(substitute(text, '[^{[(]', '', 'g')) - strlen(substitute(text, '[^]})]', '', 'g'))
endfunction

function! s:Closing(line) abort
  return strlen(substitute(matchstr(a:line, '\v^\s*\zs[\]})]+'), '\s', '', 'g'))
endfunction

function! SkywritingIndent(number) abort
  let before = prevnonblank(a:number - 1)
  if before == 0
    return 0
  endif
  let line = getline(before)
  " The line's own indentation already contains the brackets that it closes at its beginning.
  " Adjacent opening brackets (`f([`) count once, and so do adjacent closing ones.
  let opened = s:Brackets(line) + s:Closing(line)
  let step = opened > 0 ? 1 : opened < 0 ? -1 : 0
  let closing = s:Closing(getline(a:number)) > 0 ? 1 : 0
  return max([0, indent(before) + (step - closing) * shiftwidth()])
endfunction
