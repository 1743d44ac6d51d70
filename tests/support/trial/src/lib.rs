//! `#[test]` for test binaries that tests/support/common/harness.rs runs. A binary has `#[macro_use] extern crate trial;`, which puts
//! this attribute in the place of the standard one in all of its modules.

use proc_macro::{TokenStream, TokenTree};

/// Leaves the function as it is and adds it to the binary's list of tests, under the name that the standard harness gives it.
#[proc_macro_attribute]
pub fn test(_: TokenStream, function: TokenStream) -> TokenStream {
    let is_fn = |token: &TokenTree| matches!(token, TokenTree::Ident(word) if word.to_string() == "fn");
    let mut tokens = function.clone().into_iter().skip_while(|token| !is_fn(token));
    let Some(TokenTree::Ident(name)) = tokens.nth(1) else {
        return "compile_error! { \"#[test] is for functions\" }"
            .parse()
            .expect("it is Rust");
    };
    let listed = format!(
        "::inventory::submit! {{ crate::common::harness::Test {{
            name: ::core::concat!(::core::module_path!(), \"::{name}\"),
            run: {name},
        }} }}"
    );
    let listed: TokenStream = listed.parse().expect("it is Rust");
    function.into_iter().chain(listed).collect()
}
