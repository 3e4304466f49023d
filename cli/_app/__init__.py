"""What all commands share: start-up, errors, help, completion, tables, manuals."""
