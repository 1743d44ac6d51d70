//! What the browser does with pages of our own, so that what it says of others can be believed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use super::Browser;
use crate::common;

#[test]
fn a_page_is_opened_asked_and_used() {
    let mut browser = Browser::start("browser");
    let folder = common::scratch("browser-page");
    let page = folder.join("page.html");
    let body = r#"<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">
        <style>body { background: white } @media (prefers-color-scheme: dark) { body { background: black } }</style>
        <button onclick="this.textContent = 'pressed'">ö</button><input><input type="file" id="file">
        <p style="margin-top: 3000px" onmouseover="seen = 1">far</p>
        <script>let keys = ''; let seen = 0; onkeydown = event => { keys += event.key + ';' }; console.log('hello', 7)</script>"#;
    std::fs::write(&page, body).unwrap();
    browser.open(&page);
    assert_eq!(browser.problems(), [""; 0]);
    assert_eq!(browser.console(), ["log: hello 7"]);
    assert_eq!(browser.requests().len(), 1, "itself: {:?}", browser.requests());
    assert_eq!(browser.text("document.querySelector('button').textContent"), "ö");
    browser.click("button");
    browser.wait_for("document.querySelector('button').textContent === 'pressed'");
    browser.hover("p");
    browser.wait_for("seen");
    browser.click("input");
    browser.key("a");
    browser.key("ArrowLeft");
    browser.key("b");
    assert_eq!(browser.text("document.querySelector('input').value"), "ba");
    assert_eq!(browser.text("keys"), "a;ArrowLeft;b;");
    browser.choose("#file", &[&page]);
    let read = browser.text("document.querySelector('#file').files[0].text()");
    assert_eq!(read, body);
    let background = "getComputedStyle(document.body).backgroundColor";
    for (scheme, color) in [("dark", "rgb(0, 0, 0)"), ("light", "rgb(255, 255, 255)")] {
        browser.color_scheme(scheme);
        assert_eq!(browser.text(background), color);
    }
    browser.window(333, 222);
    assert_eq!(browser.number("innerWidth * 1000 + innerHeight"), 333_222.0);
    browser.screenshot(&folder.join("page.png"));
    let picture = std::fs::read(folder.join("page.png")).unwrap();
    assert_eq!(picture[..8], *b"\x89PNG\r\n\x1a\n");
    assert_eq!(picture[16..24], [0, 0, 1, 77, 0, 0, 0, 222], "width and height");
}

#[test]
fn errors_in_a_page_are_shown() {
    let mut browser = Browser::start("browser-wrong");
    let page = common::scratch("browser-wrong-page").join("page.html");
    let body = r#"<!doctype html><link rel="icon" href="data:,"><img src="https://example.org/none.png">
        <script>console.error('first', {}); setTimeout(() => { alert('third'); nothing.there }, 0)</script>
        <script src="none.js"></script>"#;
    std::fs::write(&page, body).unwrap();
    browser.open(&page);
    browser.wait_for("document.readyState === 'complete'");
    let problems = browser.problems().join("\n");
    for part in [
        "first",
        "third",
        "ReferenceError: nothing",
        "none.js",
        "https://example.org/none.png",
    ] {
        assert!(problems.contains(part), "{part}: {problems}");
    }
    let thrown = catch_unwind(AssertUnwindSafe(|| browser.evaluate("null.x")));
    assert!(thrown.is_err(), "an exception fails");
    // One deadline is for all pages, and a page that hangs is named.
    browser.deadline = Instant::now();
    let late = catch_unwind(AssertUnwindSafe(|| browser.evaluate("new Promise(() => 0)")));
    let late = late.unwrap_err().downcast::<String>().unwrap();
    assert!(late.contains("Runtime.evaluate") && late.contains("first"), "{late}");
}
