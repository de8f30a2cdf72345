"""The pages of docs/ describe what the program does: generated pages, figures, links, commands and tutorials."""
