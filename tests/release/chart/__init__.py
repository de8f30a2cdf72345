"""The chart as Helm itself renders it. Begin with `test_chart`; `rendering` calls Helm."""
