//! The documents: what they show is compiled or run (`blocks`, `block_commands`, `block_python`), the reference names what the headers have
//! (`reference`), and they are a book whose links lead somewhere (`book`). Figures and output on a page are compared where they are made.

mod block_commands;
mod block_python;
mod blocks;
mod book;
mod reference;
