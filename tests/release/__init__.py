"""The distributions contain every package once and require what they import."""
