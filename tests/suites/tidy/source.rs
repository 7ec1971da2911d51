//! Sources as the rules read them: words, paths and syntax. It contains no rule.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use bgd_tests::docs::root;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

pub struct Source {
    /// Its path relative to the workspace.
    pub path: String,
    pub text: String,
    /// All words of the text; those of tests are marked.
    pub words: Vec<Word>,
}

/// A token: an identifier, a punctuation character, a bracket or a literal.
pub struct Word {
    /// Its text; empty for a literal, because most rules do not look into them.
    pub text: String,
    /// The literal as it is written; otherwise empty.
    pub literal: String,
    /// The line it is on, from 1.
    pub line: usize,
    /// Whether it belongs to a test.
    pub in_test: bool,
}

/// Returns every Rust file below these folders.
pub fn sources(folders: &[&str]) -> Vec<&'static Source> {
    let mut paths = Vec::new();
    for folder in folders {
        collect(&root().join(folder), &mut paths);
    }
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

/// A cache of sources, as nearly all rules look at all of them.
static READ: Mutex<BTreeMap<PathBuf, &'static Source>> = Mutex::new(BTreeMap::new());

fn collect(folder: &Path, into: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

fn read(path: &Path) -> &'static Source {
    let mut read = READ.lock().unwrap();
    read.entry(path.to_owned()).or_insert_with(|| {
        let text = fs::read_to_string(path).unwrap();
        Box::leak(Box::new(source(path.strip_prefix(root()).unwrap().display().to_string(), text)))
    })
}

pub fn source(path: String, text: String) -> Source {
    let tokens: TokenStream = text.parse().unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut words = Vec::new();
    // A module of tests may be a file or a folder.
    let is_test = path.contains("/src/") && (path.contains("/tests/") || path.ends_with("/tests.rs"));
    flatten(tokens, is_test, &mut words);
    Source { path, text, words }
}

/// Flattens tokens into words. An item with `#[cfg(test)]` or `#[test]` is a test up to its end.
fn flatten(tokens: TokenStream, in_test: bool, words: &mut Vec<Word>) {
    let mut test_item = false;
    let mut after_hash = false;
    for token in tokens {
        let line = token.span().start().line;
        match &token {
            TokenTree::Ident(ident) => words.push(word(&ident.to_string(), line, in_test || test_item)),
            TokenTree::Punct(punct) => {
                words.push(word(&punct.as_char().to_string(), line, in_test || test_item));
            }
            TokenTree::Literal(literal) => {
                let word = word("", line, in_test || test_item);
                words.push(Word { literal: literal.to_string(), ..word });
            }
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                let content = group.stream().to_string().replace(' ', "");
                test_item |= after_hash && matches!(content.as_str(), "cfg(test)" | "test" | "tokio::test");
                let in_test = in_test || test_item;
                words.push(word(open, line, in_test));
                flatten(group.stream(), in_test, words);
                words.push(word(close, group.span_close().start().line, in_test));
            }
        }
        let ends_item = match &token {
            TokenTree::Punct(punct) => punct.as_char() == ';',
            TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
            TokenTree::Ident(_) | TokenTree::Literal(_) => false,
        };
        test_item &= !ends_item;
        after_hash = matches!(&token, TokenTree::Punct(punct) if punct.as_char() == '#');
    }
}

fn word(text: &str, line: usize, in_test: bool) -> Word {
    Word { text: text.to_owned(), literal: String::new(), line, in_test }
}

impl Source {
    pub fn syntax(&self) -> syn::File {
        syn::parse_file(&self.text).unwrap_or_else(|error| panic!("{}: {error}", self.path))
    }

    /// Returns the words outside of tests.
    pub fn own_words(&self) -> Vec<&Word> {
        self.words.iter().filter(|word| !word.in_test).collect()
    }

    /// Returns every path of at least two names outside of tests, and every import, with its line.
    pub fn paths(&self) -> Vec<(Vec<String>, usize)> {
        let words = self.own_words();
        let text = |place: usize| words.get(place).map_or("", |word| word.text.as_str());
        let is_name =
            |place: usize| text(place).starts_with(|first: char| first.is_alphabetic() || first == '_');
        let mut paths = Vec::new();
        let mut place = 0;
        while place < words.len() {
            let line = words[place].line;
            let mut path = Vec::new();
            // `pub(in path)` uses nothing.
            let before = |steps: usize| place.checked_sub(steps).map_or("", text);
            let is_visibility = before(1) == "in" && before(2) == "(" && before(3) == "pub";
            while is_name(place) {
                path.push(text(place).to_owned());
                place += 1;
                if text(place) == ":" && text(place + 1) == ":" && is_name(place + 2) {
                    place += 2;
                } else {
                    break;
                }
            }
            if path.is_empty() {
                place += 1;
            } else if path.len() > 1 && !is_visibility {
                paths.push((path, line));
            }
        }
        let mut imports = Imports::default();
        imports.visit_file(&self.syntax());
        let Imports { found, inline } = imports;
        paths.extend(found);
        let (module, below) = (self.module(), self.below());
        let depth = |line: usize| inline.iter().filter(|lines| lines.contains(&line)).count();
        let path_of = |(path, line)| (resolved(&from_file(path, depth(line)), &module, &below), line);
        paths.into_iter().map(path_of).collect()
    }

    /// Returns the names of the modules that this file declares outside of tests.
    fn below(&self) -> BTreeSet<String> {
        let words = self.own_words();
        let declared = words.windows(3).filter_map(|three| match three {
            [word, name, after] if word.text == "mod" && matches!(after.text.as_str(), ";" | "{") => {
                Some(name.text.clone())
            }
            _ => None,
        });
        declared.collect()
    }

    /// Returns the names under which this crate's root has other crates.
    pub fn renamed_crates(&self) -> Vec<String> {
        let words = self.own_words();
        let renamed = words.windows(4).filter_map(|four| match four {
            [word, package, alias, name] if word.text == "use" && alias.text == "as" => {
                let is_own = matches!(package.text.as_str(), "crate" | "self" | "super");
                (self.module().is_empty() && !is_own).then(|| name.text.clone())
            }
            _ => None,
        });
        renamed.collect()
    }

    /// Returns the path of this file's module in its crate.
    pub fn module(&self) -> Vec<String> {
        let (_, below) = self.path.split_once("/src/").unwrap_or_default();
        let names =
            below.trim_end_matches(".rs").split('/').filter(|name| !matches!(*name, "mod" | "lib" | "main"));
        names.map(str::to_owned).collect()
    }

    pub fn at(&self, line: usize, what: impl std::fmt::Display) -> String {
        format!("{}:{line}: {what}", self.path)
    }
}

/// Turns a path in a module within that many others of the same file into one of the file's own module.
fn from_file(mut path: Vec<String>, depth: usize) -> Vec<String> {
    let supers = path.iter().take_while(|name| *name == "super").count();
    let left_out = supers.min(depth);
    path.drain(..left_out);
    if left_out > 0 && left_out == supers {
        path.insert(0, "self".to_owned());
    }
    path
}

/// Resolves a path that begins with `self`, with `super` or with a module declared in the same file to one from the
/// root of its crate.
fn resolved(path: &[String], module: &[String], below: &BTreeSet<String>) -> Vec<String> {
    let supers = path.iter().take_while(|name| *name == "super").count();
    let (base, skipped) = match path.first().map(String::as_str) {
        Some("super") => (&module[..module.len().saturating_sub(supers)], supers),
        Some("self") => (module, 1),
        Some(name) if below.contains(name) => (module, 0),
        _ => return path.to_vec(),
    };
    let rest = path.iter().skip(skipped);
    std::iter::once("crate")
        .chain(base.iter().map(String::as_str))
        .chain(rest.map(String::as_str))
        .map(str::to_owned)
        .collect()
}

/// The imports outside of tests, and the lines of the modules that are in the file itself.
#[derive(Default)]
struct Imports {
    found: Vec<(Vec<String>, usize)>,
    inline: Vec<RangeInclusive<usize>>,
}

impl Imports {
    fn add(&mut self, mut prefix: Vec<String>, tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.add(prefix, &path.tree);
            }
            syn::UseTree::Name(name) => {
                prefix.push(name.ident.to_string());
                self.found.push((prefix, name.ident.span().start().line));
            }
            syn::UseTree::Rename(name) => {
                prefix.push(name.ident.to_string());
                self.found.push((prefix, name.ident.span().start().line));
            }
            syn::UseTree::Glob(glob) => self.found.push((prefix, glob.star_token.spans[0].start().line)),
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.add(prefix.clone(), item)),
        }
    }
}

impl<'ast> Visit<'ast> for Imports {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.add(Vec::new(), &item.tree);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            if item.content.is_some() {
                self.inline.push(item.span().start().line..=item.span().end().line);
            }
            visit::visit_item_mod(self, item);
        }
    }
}

pub fn is_test(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| match &attr.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::NameValue(_) => false,
    })
}
