" Four columns for each bracket that is open, whatever its kind, as `ciel sw fmt` has it.
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

" How many more brackets a line opens than it closes, and whether it begins by closing one.
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
  " What closes at the line's own beginning is in its indentation already. Brackets that open
  " together (`f([`) count once, as do those that close together.
  let opened = s:Brackets(line) + s:Closing(line)
  let step = opened > 0 ? 1 : opened < 0 ? -1 : 0
  let closing = s:Closing(getline(a:number)) > 0 ? 1 : 0
  return max([0, indent(before) + (step - closing) * shiftwidth()])
endfunction
