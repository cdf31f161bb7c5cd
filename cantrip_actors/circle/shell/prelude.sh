# What a shell reads before each program of its entity: the ways to its host, defined anew, since a program may have
# redefined them. fd 103 asks, fd 104 is answered on; fds 105 and 106 hold a token, so that one asks at a time. They are
# that high because programs have low ones for themselves: a loop that reads from fd 3 calls gates.
builtin unset __program __left __exit __bye __shows
exec 1>&107 2>&107
__call() {
  { builtin local - __token __status __length __answer; builtin set +x; } 2>/dev/null
  builtin read -r -N 1 -u 105 __token || builtin return 1
  builtin printf '%s\0' "$#" "$@" >&103
  builtin read -r -N 1 -u 104 __status
  builtin read -r -N 10 -u 104 __length
  # letters are bytes; a locale that there is not is complained of when it comes back
  { LC_ALL=C builtin read -r -N "$__length" -u 104 __answer; } 2>/dev/null
  builtin printf . >&106
  if [[ $__status = 0 ]]; then builtin printf '%s' "$__answer"; else builtin printf '%s' "$__answer" >&2; builtin return 1; fi
}
# `trap … EXIT` of a program: its trap for the end runs at its end, as a script's does, and the shell's own stays.
__trap() {
  if [[ $BASHPID != "$$" ]]; then builtin trap "$@"; builtin return; fi
  builtin local __name __others
  __others=()
  [[ $1 != -- ]] || builtin shift
  for __name in "${@:2}"; do
    case ${__name^^} in
      EXIT | SIGEXIT | 0) if [[ $1 = - ]]; then __exit=; else __exit=$1; fi ;;
      *) __others+=("$__name") ;;
    esac
  done
  ((${#__others[@]} == 0)) || builtin trap "$1" "${__others[@]}"
}
# Whether it holds more files open than a shell has here: those would be in no text.
__holds() { builtin local - GLOBIGNORE=; builtin set +f; builtin set -- /proc/self/fd/*; (($# > 11)); }
# How a program ended, and what it leaves: no process, and what it was as text that another shell can read.
__end() {
  builtin set +t
  builtin trap - EXIT DEBUG ERR RETURN
  builtin disown -a
  builtin kill -KILL -1
  builtin printf '%s\0' "${@:1:3}" >&103
  {
    if [[ $3 = on ]] && __holds; then builtin echo '# files are open'; fi
    builtin shopt -p; builtin declare -p; builtin trap -p; builtin umask -p
    if (($# > 3)); then builtin printf 'builtin set --'; builtin printf ' %q' "${@:4}"; fi
    builtin printf '\nbuiltin cd -- %q\n\0' "$PWD"
    builtin declare -f; builtin printf '\0'
    builtin declare -Fx; builtin set +o; builtin printf '\0'
    builtin alias -p; builtin printf '\0'
  } >&103
} 2>/dev/null
builtin export -f __call
