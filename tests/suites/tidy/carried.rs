//! Nothing that an upgrade must carry can be forgotten: the function that writes a state destructures its owner by
//! name, so that a new field does not compile until somebody has decided about it.

use std::collections::BTreeSet;

use syn::visit::{self, Visit};

use super::none;
use super::source::{Source, is_test, source, sources};

/// The name of a state that an upgrade carries.
const STATE: &str = "State";

/// The names of the methods that return an owner's state.
const ASKED: [&str; 2] = ["state", "carried"];

/// The types of a source.
#[derive(Default)]
struct Types {
    /// The states that an upgrade carries.
    states: BTreeSet<String>,
    owners: BTreeSet<String>,
    /// Structures without named fields, whose one field can't be forgotten.
    others: BTreeSet<String>,
}

impl<'ast> Visit<'ast> for Types {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.note(&item.ident, &item.attrs);
        if matches!(item.fields, syn::Fields::Named(_)) {
            self.owners.insert(item.ident.to_string());
        } else {
            self.others.insert(item.ident.to_string());
        }
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.note(&item.ident, &item.attrs);
    }
}

impl Types {
    fn note(&mut self, name: &syn::Ident, attributes: &[syn::Attribute]) {
        let name = name.to_string();
        let is_written = attributes.iter().any(|attribute| match &attribute.meta {
            syn::Meta::List(list) => list.tokens.to_string().contains("Serialize"),
            syn::Meta::Path(_) | syn::Meta::NameValue(_) => false,
        });
        if is_written && name.ends_with(STATE) {
            self.states.insert(name);
        }
    }
}

/// The structures that a body destructures, completely and in part, and whether it makes a state field by field.
#[derive(Default)]
struct Body<'a> {
    states: BTreeSet<&'a str>,
    owners: BTreeSet<&'a str>,
    /// The type that `Self` stands for.
    owner: &'a str,
    apart: BTreeSet<String>,
    is_cut: bool,
    makes: bool,
    /// The parameters that it asks for their states, and which destructure themselves.
    asked: BTreeSet<String>,
}

impl Body<'_> {
    fn name(&self, path: &syn::Path) -> String {
        let name = path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
        if name == "Self" { self.owner.to_owned() } else { name }
    }
}

impl<'ast> Visit<'ast> for Body<'_> {
    fn visit_pat_struct(&mut self, pattern: &'ast syn::PatStruct) {
        let name = self.name(&pattern.path);
        if pattern.rest.is_none() {
            self.apart.insert(name);
        } else {
            self.is_cut |= self.owners.contains(&*name) && !self.states.contains(&*name);
        }
        visit::visit_pat_struct(self, pattern);
    }

    fn visit_expr_struct(&mut self, made: &'ast syn::ExprStruct) {
        let name = self.name(&made.path);
        self.makes |= self.states.contains(&*name) && made.dot2_token.is_none();
        visit::visit_expr_struct(self, made);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if ASKED.contains(&&*call.method.to_string())
            && let syn::Expr::Path(receiver) = &*call.receiver
        {
            self.asked.extend(receiver.path.get_ident().map(ToString::to_string));
        }
        visit::visit_expr_method_call(self, call);
    }
}

/// Reports whether a body only asks another method for the state.
fn is_passed_on(block: &syn::Block) -> bool {
    let [syn::Stmt::Expr(syn::Expr::MethodCall(call), None)] = &block.stmts[..] else { return false };
    let is_own = matches!(&*call.receiver, syn::Expr::Path(path) if path.path.is_ident("self"));
    is_own && ASKED.contains(&&*call.method.to_string())
}

/// Returns the parameters that a function only reads, and the names in the type of each.
fn read(signature: &syn::Signature) -> Vec<(String, BTreeSet<String>)> {
    let mut all = Vec::new();
    for parameter in &signature.inputs {
        if let syn::FnArg::Typed(typed) = parameter
            && let syn::Pat::Ident(name) = &*typed.pat
            && !matches!(&*typed.ty, syn::Type::Reference(reference) if reference.mutability.is_some())
        {
            let mut names = Names::default();
            names.visit_type(&typed.ty);
            all.push((name.ident.to_string(), names.0));
        }
    }
    all
}

#[derive(Default)]
struct Names(BTreeSet<String>);

impl<'ast> Visit<'ast> for Names {
    fn visit_ident(&mut self, name: &'ast syn::Ident) {
        self.0.insert(name.to_string());
    }
}

/// The functions that write a state without destructuring its owner, by their lines.
struct Writers<'a> {
    states: BTreeSet<&'a str>,
    owners: BTreeSet<&'a str>,
    owner: String,
    broken: Vec<usize>,
}

impl<'ast> Visit<'ast> for Writers<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let syn::Type::Path(path) = &*item.self_ty {
            self.owner =
                path.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_impl_item_fn(&mut self, method: &'ast syn::ImplItemFn) {
        self.check(&method.sig, &method.block);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_test(&item.attrs) {
            self.check(&item.sig, &item.block);
        }
    }
}

impl Writers<'_> {
    fn check(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let is_asked = ASKED.contains(&&*signature.ident.to_string()) && signature.receiver().is_some();
        let mut returned = Names::default();
        returned.visit_return_type(&signature.output);
        if returned.0.remove("Self") {
            returned.0.insert(self.owner.clone());
        }
        let is_written = returned.0.iter().any(|name| self.states.contains(&**name));
        if !is_written && !is_asked {
            return;
        }
        let mut body = Body {
            states: self.states.clone(),
            owners: self.owners.clone(),
            owner: &self.owner,
            ..Body::default()
        };
        body.visit_block(block);
        let is_owner = |name: &String| self.owners.contains(&**name) && !self.states.contains(&**name);
        let is_apart = |(parameter, names): &(String, BTreeSet<String>)| {
            body.asked.contains(parameter)
                || names.iter().filter(|name| is_owner(name)).all(|name| body.apart.contains(name))
        };
        let is_complete = if signature.receiver().is_none() {
            !body.makes || read(signature).iter().all(is_apart)
        } else if is_asked && is_owner(&self.owner) {
            body.apart.contains(&self.owner) || is_passed_on(block)
        } else {
            !body.makes || body.apart.iter().any(|name| !self.states.contains(&**name))
        };
        if !is_complete || body.makes && body.is_cut {
            self.broken.push(signature.ident.span().start().line);
        }
    }
}

/// Returns the places in these sources where an owner is not destructured.
fn forgetful(sources: &[&Source]) -> Vec<String> {
    let mut states = BTreeSet::new();
    let mut owners = BTreeSet::new();
    for source in sources {
        let mut types = Types::default();
        types.visit_file(&source.syntax());
        states.extend(types.states);
        owners.extend(types.owners);
    }
    let mut broken = Vec::new();
    for source in sources {
        let states = states.iter().map(String::as_str).collect();
        let mut types = Types::default();
        types.visit_file(&source.syntax());
        // A type of the same name in another file is a different type.
        let is_owner = |name: &&str| !types.others.contains(*name);
        let owners = owners.iter().map(String::as_str).filter(is_owner).collect();
        let mut writers = Writers { states, owners, owner: String::new(), broken: Vec::new() };
        writers.visit_file(&source.syntax());
        broken.extend(writers.broken.into_iter().map(|line| source.at(line, "does not name every field")));
    }
    broken
}

#[test]
fn r121_check_finds_state_writers_that_could_forget_a_field() {
    let text = "//! A module.
        #[derive(Serialize)] struct OwnState { a: u8 }
        struct Own { a: u8, b: u8 }
        struct Wrapped(Mutex<Own>);
        impl Own {
            fn state(&self) -> OwnState { OwnState { a: self.a } }
            fn carried(&self) -> Option<OwnState> { let Self { a, .. } = self; Some(OwnState { a: *a }) }
            fn kept(&self) -> OwnState { OwnState { a: self.a } }
            fn cut(&self, own: &Own) -> OwnState { let Own { a, .. } = own; let Self { a: _, b: _ } = self; OwnState { a: *a } }
        }
        impl OwnState {
            fn of(own: &Own) -> Self { Self { a: own.a } }
            fn plain(own: &Own) -> Self { let Own { a, b: _ } = own; Self { a: *a } }
        }
        fn asked(own: &Own, stat: &Stat) -> OwnState { OwnState { a: own.a + stat.state() } }
        fn written(own: &Own) -> Result<OwnState, Error> { Ok(OwnState { a: own.a }) }
        impl Own {
            fn state(&self) -> OwnState { let Self { a, b: _ } = self; OwnState { a: *a } }
            fn all(&self) -> Vec<OwnState> { for Own { a, b: _ } in x { OwnState { a: *a }; } }
            fn again(&self) -> OwnState { self.state() }
        }
        impl Wrapped {
            fn state(&self) -> OwnState { let Own { a, b: _ } = &*self.lock(); OwnState { a: *a } }
        }
        #[cfg(test)] mod tests { impl Own { fn state(&self) -> OwnState { OwnState { a: self.a } } } }";
    let source = source("bgd/src/own.rs".to_owned(), text.to_owned());
    let found = forgetful(&[&source]);
    let lines: Vec<bool> = [6, 7, 8, 9, 12, 15, 16]
        .map(|line| found.iter().any(|place| place.contains(&format!(":{line}:"))))
        .into();
    assert!(found.len() == 7 && lines.iter().all(|is_found| *is_found), "{found:?}");
}

#[test]
fn r121_state_writers_destructure_their_owner_field_by_field() {
    let own = sources(&["bgd/src"]);
    none("whoever writes a state for an upgrade takes its owner apart without `..`", &forgetful(&own));
}
