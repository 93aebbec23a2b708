//! The relay as its user meets it: the built program, its files, its output and its exit code. What it
//! says of itself is compared with its input and with its database, read here.

mod basics;
mod faults;
mod files;
mod overload;
mod place;
mod processes;
