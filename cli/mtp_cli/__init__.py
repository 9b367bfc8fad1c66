"""The command line, `mtp`: one file a command. It knows no tensor."""
