# What a shell reads before each program of its entity: the ways to its host, defined anew, since a program may have
# redefined them. fd 107 asks, fd 104 is answered on; fds 105 and 106 hold a token, so that one asks at a time; fd 103 is the output.
# They are that high because programs have low ones for themselves: a loop that reads from fd 3 calls gates. The one that
# asks is the highest, because bash keeps the former output above it while it writes there, and so fills no gap below.
builtin unset -v __program; builtin unset -f exec
exec 1>&103 2>&103
__call() {
  { builtin local - __token __status __length __answer; builtin set +x; } 2>/dev/null
  builtin read -r -N 1 -u 105 __token || builtin return 1
  builtin printf '%s\0' "$#" "$@" >&107
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
# How a program ended, and what it leaves: no process, and what it was as text that another shell can read. A shell in
# which a program has made the host's own names readonly is spoilt for the next one, and another takes its place.
__end() {
  builtin set +t
  builtin trap - EXIT DEBUG ERR RETURN
  builtin disown -a
  builtin kill -KILL -1
  builtin unset -n OWN_VARIABLES && builtin unset -v OWN_VARIABLES && builtin unset -f OWN_FUNCTIONS ||
    builtin set -- "$1" "$2" "${3/on/spoilt}" "${@:4}"
  builtin printf '%s\0' "${@:1:3}" >&107 || builtin kill -KILL "$$"
  {
    if [[ $3 != exit ]] && __holds; then builtin echo '# files are open'; fi
    builtin shopt -p; builtin declare -p; builtin trap -p; builtin umask -p
    if (($# > 3)); then builtin printf 'builtin set --'; builtin printf ' %q' "${@:4}"; fi
    builtin printf '\nbuiltin cd -- %q\n\0' "$PWD"
    builtin declare -f; builtin printf '\0'
    builtin declare -Fx; builtin set +o; builtin printf '\0'
    builtin alias -p; builtin printf '\0'
  } >&107
} 2>/dev/null
builtin export -f __call
