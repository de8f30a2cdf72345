"""The chart as Helm itself reads it. Begin with `test_chart`; `rendering` asks Helm."""
