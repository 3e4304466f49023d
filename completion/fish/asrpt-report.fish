complete --command asrpt-report --no-files
complete --command asrpt-report --no-files --long-option help --description 'Show the options.'
complete --command asrpt-report --no-files --long-option version --description 'Show the version.'
complete --command asrpt-report --no-files --long-option total --exclusive --description 'Iterations of the whole training.'
complete --command asrpt-report --no-files --long-option loss --exclusive --description 'The training loss now.'
complete --command asrpt-report --no-files --long-option start --exclusive --description 'Iterations that an earlier job had done.'
