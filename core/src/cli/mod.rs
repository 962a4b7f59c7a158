//! Command line: argument parsing and printing.
