complete --command asrpt-report --no-files
complete --command asrpt-report --no-files --long-option help --description 'Show the options.'
complete --command asrpt-report --no-files --long-option version --description 'Print the version.'
complete --command asrpt-report --no-files --long-option total --exclusive --description 'Total iterations of the training.'
complete --command asrpt-report --no-files --long-option loss --exclusive --description 'Current training loss.'
complete --command asrpt-report --no-files --long-option start --exclusive --description 'Iterations done by earlier jobs.'
