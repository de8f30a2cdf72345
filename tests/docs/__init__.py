"""What the pages of docs/ say is what the program does: generated pages, figures, links, commands and tutorials."""
