# What a shell reads before each program of its entity: the ways to its host, defined anew, since a program may have
# redefined or closed them. fd 3 asks, fd 4 is answered on; fds 5 and 6 hold a token, so that one asks at a time.
builtin unset __program __left __exit __bye
exec 1>&107 2>&107 3>&103 4<&104 5<&105 6>&106
__call() {
  builtin local IFS=' ' LC_ALL=C __token __status __length __answer
  IFS= builtin read -r -N 1 -u 5 __token || builtin return 1
  builtin printf '%s\0' "$#" "$@" >&3
  builtin read -r -u 4 __status __length
  IFS= builtin read -r -N "$__length" -u 4 __answer
  builtin printf . >&6
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
__holds() { builtin set -- /proc/self/fd/*; (($# > 15)); }
# How a program ended, and what it leaves: no process, and what it was as text that another shell can read.
__end() {
  builtin trap - EXIT DEBUG ERR RETURN
  builtin disown -a
  builtin kill -KILL -1
  builtin printf '%s\0' "${@:1:4}" >&3
  {
    if [[ $4 = on ]] && __holds; then builtin echo '# files are open'; fi
    builtin shopt -p; builtin declare -p; builtin trap -p; builtin umask -p
    if (($# > 4)); then builtin printf 'builtin set --'; builtin printf ' %q' "${@:5}"; fi
    builtin printf '\nbuiltin cd -- %q\n\0' "$PWD"
    builtin declare -f; builtin printf '\0'
    builtin declare -Fx; builtin set +o; builtin printf '\0'
    builtin alias -p; builtin printf '\0'
  } >&3
} 2>/dev/null
builtin export -f __call
