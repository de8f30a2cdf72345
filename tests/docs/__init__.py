"""The pages of docs/ say what the program does: generated pages, figures, links, commands and tutorials."""
