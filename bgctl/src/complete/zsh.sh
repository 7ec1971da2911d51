
# What is found in fpath becomes the function that its file defines, and is being asked already.
if [[ ${funcstack[1]-} == _@NAME@ ]]; then
    _clap_dynamic_completer_@NAME@ "$@"
fi
