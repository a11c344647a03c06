" Colours of Skywriting scripts. A test compares the keywords with those of the language.
if exists("b:current_syntax")
  finish
endif

syntax match skywritingOperator "[-+*/%=<>!]\|&&\|||"
syntax match skywritingCall "\<\h\w*\>\ze\s*("
syntax match skywritingField "\.\s*\zs\h\w*\>"
syntax match skywritingNumber "\<\%(0\|[1-9]\d*\)\%(\.\d\+\)\?\%([eE][-+]\?\d\+\)\?\>"

syntax keyword skywritingConditional if else
syntax keyword skywritingRepeat for in while do
syntax keyword skywritingStatement return break continue
syntax keyword skywritingInclude include
syntax keyword skywritingKeyword function lambda
syntax keyword skywritingBoolean true false
syntax keyword skywritingConstant null
syntax keyword skywritingVariable env argv
syntax keyword skywritingBuiltin spawn spawn_exec exec spawn_other int str len range has_key get_key package print

" Scripts may use these names for variables, so only calls of them are coloured.
syntax match skywritingModern "\<\%(split\|join\|replace\|trim\|startswith\|endswith\|find\|lower\|upper\|contains\|slice\|map\|filter\|reduce\|sort\|reversed\|keys\|values\|min\|max\|sum\|zip\|enumerate\|float\|abs\|floor\|round\|sqrt\|json\|to_json\|select\|is_future\|is_error\|try_deref\|read\|lines\)\>\ze\s*("

" `div` is an operator only between operands.
syntax match skywritingWordOperator "\%(\%(\<\%(return\|include\|in\)\)\@<![[:alnum:]_)\]\"']\s\+\|[)\]\"']\)\@<=div\>"

syntax match skywritingName "\%(\<function\s\+\)\@<=\h\w*"

syntax match skywritingEscape contained "\\[\"'\\bfnrt]\|\\u\x\{4}"
syntax match skywritingBadEscape contained "\\\%([\"'\\bfnrt]\|u\x\{4}\)\@!."
syntax region skywritingString oneline start=+"+ skip=+\\.+ end=+"+ contains=skywritingEscape,skywritingBadEscape
syntax region skywritingString oneline start=+'+ skip=+\\.+ end=+'+ contains=skywritingEscape,skywritingBadEscape

syntax keyword skywritingNote contained TODO FIXME XXX NOTE
syntax match skywritingComment "//.*$" contains=skywritingNote,@Spell
syntax region skywritingComment start="/\*" end="\*/" contains=skywritingNote,@Spell
syntax match skywritingShebang "\%^#!.*$"

syntax sync ccomment skywritingComment

highlight default link skywritingOperator Operator
highlight default link skywritingWordOperator Operator
highlight default link skywritingCall Function
highlight default link skywritingName Function
highlight default link skywritingField Identifier
highlight default link skywritingNumber Number
highlight default link skywritingConditional Conditional
highlight default link skywritingRepeat Repeat
highlight default link skywritingStatement Statement
highlight default link skywritingInclude Include
highlight default link skywritingKeyword Keyword
highlight default link skywritingBoolean Boolean
highlight default link skywritingConstant Constant
highlight default link skywritingVariable Special
highlight default link skywritingBuiltin Special
highlight default link skywritingModern Special
highlight default link skywritingString String
highlight default link skywritingEscape SpecialChar
highlight default link skywritingBadEscape Error
highlight default link skywritingNote Todo
highlight default link skywritingComment Comment
highlight default link skywritingShebang PreProc

let b:current_syntax = "skywriting"
