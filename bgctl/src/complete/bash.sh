_clap_complete_@NAME@() {
    local IFS=$' \t\n' rest=$COMP_LINE line=() typed=$2 place word blanks head answer candidate candidates=()
    local ends='^[:=@]+$' special=$'[][ \t\n\\\\\'"`$&|;<>(){}*?!#~^]'
    for ((place = 0; place <= COMP_CWORD; place++)); do
        word=${COMP_WORDS[place]}
        blanks=${rest%%[![:space:]]*}
        rest=${rest#"$blanks"}
        rest=${rest#"$word"}
        if ((place == COMP_CWORD)) && ! [[ $word =~ $ends ]]; then
            # What is typed up to the cursor. An @ begins it, though it is a word of its own.
            word=$typed
            [[ $place == 0 || ${COMP_WORDS[place - 1]} != @ ]] || word=${word#@}
        fi
        [[ $word == [\"\']* ]] || word=${word//\\/}
        # Bash ends words at some marks, too. What stands together is one.
        if ((place > 0)) && [[ -z $blanks ]] &&
            [[ ${COMP_WORDS[place]} =~ $ends || ${COMP_WORDS[place - 1]} =~ $ends ]]; then
            line[${#line[@]} - 1]+=$word
        else
            line+=("$word")
        fi
    done
    # It replaces only what comes after the last of those marks.
    typed=${typed//\\/}
    head=${line[${#line[@]} - 1]%"$typed"}
    answer=$(
        _CLAP_IFS=$'\013' \
            _CLAP_COMPLETE_INDEX=$((${#line[@]} - 1)) \
            _CLAP_COMPLETE_COMP_TYPE=$COMP_TYPE \
            @VARIABLE@=bash \
            @PROGRAM@ -- "${line[@]}"
    ) || {
        unset COMPREPLY
        return
    }
    COMPREPLY=()
    IFS=$'\013' read -r -d '' -a candidates <<<"$answer"
    for candidate in ${candidates[@]+"${candidates[@]}"}; do
        candidate=${candidate%$'\n'}
        candidate=${candidate#"$head"}
        # What is only listed, and what is within quotes, is not quoted.
        if [[ $COMP_TYPE != 63 && $candidate =~ $special && ${COMP_WORDS[COMP_CWORD]} != [\"\']* ]]; then
            printf -v candidate %q "$candidate"
        fi
        COMPREPLY+=("$candidate")
    done
    compopt +o nospace 2>/dev/null
    if [[ ${COMPREPLY-} =~ [=/:]$ ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -o nospace -o bashdefault -o nosort -F _clap_complete_@NAME@ @NAME@
else
    complete -o nospace -o bashdefault -F _clap_complete_@NAME@ @NAME@
fi
