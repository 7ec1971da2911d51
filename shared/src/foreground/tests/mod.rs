//! Tests the rules of the foreground with random histories, and the scanner with random input.

mod jobs;
mod scanner;
