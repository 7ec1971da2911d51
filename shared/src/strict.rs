//! Strict JSON: fields are matched by name. Serde also accepts an array of a struct's fields in order, which would make
//! that order an undocumented part of the protocol. This deserializer accepts objects only, at every depth, so that no
//! type can be forgotten.

use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess,
    Visitor,
};
use serde_path_to_error::Track;

/// Parses JSON text.
///
/// # Errors
/// The text is not JSON, or does not match the type.
pub fn from_slice<'de, T: Deserialize<'de>>(text: &'de [u8]) -> serde_json::Result<T> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let value = T::deserialize(ByName(&mut json))?;
    json.end()?;
    Ok(value)
}

/// Like [`from_slice`], for text that is known to be UTF-8.
///
/// # Errors
/// As for [`from_slice`].
pub fn from_str<'de, T: Deserialize<'de>>(text: &'de str) -> serde_json::Result<T> {
    let mut json = serde_json::Deserializer::from_str(text);
    let value = T::deserialize(ByName(&mut json))?;
    json.end()?;
    Ok(value)
}

/// Like [`from_str`], and tracks which field is being parsed, also of an error.
///
/// # Errors
/// As for [`from_slice`].
pub fn from_str_tracked<'de, T: Deserialize<'de>>(
    text: &'de str,
    track: &mut Track,
) -> serde_json::Result<T> {
    let mut json = serde_json::Deserializer::from_str(text);
    let value = T::deserialize(ByName(serde_path_to_error::Deserializer::new(&mut json, track)))?;
    json.end()?;
    Ok(value)
}

/// Wraps a serde object and forwards every call, wrapping what it passes on, but asks for a map where a struct is
/// expected.
struct ByName<T>(T);

/// Reads the fields of a struct variant from a map.
struct Fields<V>(V);

impl<'de, V: Visitor<'de>> DeserializeSeed<'de> for Fields<V> {
    type Value = V::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        deserializer.deserialize_map(self.0)
    }
}

macro_rules! pass_on {
    ($($name:ident),*) => {
        $(fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.0.$name(ByName(visitor))
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for ByName<D> {
    type Error = D::Error;

    pass_on!(
        deserialize_any,
        deserialize_bool,
        deserialize_i8,
        deserialize_i16,
        deserialize_i32,
        deserialize_i64,
        deserialize_i128,
        deserialize_u8,
        deserialize_u16,
        deserialize_u32,
        deserialize_u64,
        deserialize_u128,
        deserialize_f32,
        deserialize_f64,
        deserialize_char,
        deserialize_str,
        deserialize_string,
        deserialize_bytes,
        deserialize_byte_buf,
        deserialize_option,
        deserialize_unit,
        deserialize_seq,
        deserialize_map,
        deserialize_identifier,
        deserialize_ignored_any
    );

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(ByName(visitor))
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_unit_struct(name, ByName(visitor))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_newtype_struct(name, ByName(visitor))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple(len, ByName(visitor))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple_struct(name, len, ByName(visitor))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_enum(name, variants, ByName(visitor))
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

macro_rules! take {
    ($($name:ident: $type:ty),*) => {
        $(fn $name<E: Error>(self, value: $type) -> Result<V::Value, E> {
            self.0.$name(value)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for ByName<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    take!(
        visit_bool: bool,
        visit_i8: i8,
        visit_i16: i16,
        visit_i32: i32,
        visit_i64: i64,
        visit_i128: i128,
        visit_u8: u8,
        visit_u16: u16,
        visit_u32: u32,
        visit_u64: u64,
        visit_u128: u128,
        visit_f32: f32,
        visit_f64: f64,
        visit_char: char,
        visit_str: &str,
        visit_borrowed_str: &'de str,
        visit_string: String,
        visit_bytes: &[u8],
        visit_borrowed_bytes: &'de [u8],
        visit_byte_buf: Vec<u8>
    );

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.0.visit_some(ByName(deserializer))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.0.visit_newtype_struct(ByName(deserializer))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(ByName(access))
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(ByName(access))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        self.0.visit_enum(ByName(access))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for ByName<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(ByName(deserializer))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for ByName<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(ByName(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for ByName<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(ByName(seed))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(ByName(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for ByName<A> {
    type Error = A::Error;
    type Variant = ByName<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self::Variant), A::Error> {
        let (name, variant) = self.0.variant_seed(ByName(seed))?;
        Ok((name, ByName(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for ByName<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.0.newtype_variant_seed(ByName(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(len, ByName(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.newtype_variant_seed(Fields(ByName(visitor)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::value::RawValue;
    use std::borrow::Cow;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Point {
        x: i32,
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    enum Shape {
        Dot,
        Of(Vec<Point>),
        Line { from: Point },
    }

    #[derive(Debug, serde::Deserialize)]
    struct All<'a> {
        #[serde(borrow)]
        text: Cow<'a, str>,
        #[serde(borrow)]
        raw: &'a RawValue,
        shapes: Vec<Shape>,
        maybe: Option<Point>,
        pair: (u8, f32),
    }

    #[test]
    fn objects_are_deserialized_as_usual() {
        let text = r#"{"text":"a","raw":[1,{"x":2}],"shapes":["Dot",{"Of":[{"x":1}]},{"Line":{"from":{"x":2}}}],
                       "maybe":{"x":3},"pair":[4,5.5]}"#;
        let all: All<'_> = from_str(text).unwrap();
        assert!(matches!(all.text, Cow::Borrowed("a")));
        assert_eq!(all.raw.get(), r#"[1,{"x":2}]"#);
        let line = Shape::Line { from: Point { x: 2 } };
        assert_eq!(all.shapes, [Shape::Dot, Shape::Of(vec![Point { x: 1 }]), line]);
        assert_eq!((all.maybe, all.pair), (Some(Point { x: 3 }), (4, 5.5)));
        assert!(from_slice::<Point>(b"{\"x\":1} 2").is_err(), "something is behind it");
    }

    #[test]
    fn array_is_refused_as_struct_at_any_depth() {
        for text in [r#"{"Of":[[1]]}"#, r#"{"Line":[{"x":1}]}"#, r#"{"Line":{"from":[1]}}"#] {
            assert!(serde_json::from_str::<Shape>(text).is_ok(), "else there is nothing to refuse");
            assert!(from_str::<Shape>(text).unwrap_err().is_data(), "{text}");
        }
        assert!(serde_json::from_str::<Point>("[1]").is_ok(), "else there is nothing to refuse");
        let error = from_str::<Option<Point>>("[1]").unwrap_err().to_string();
        assert!(error.contains("invalid type: sequence, expected struct Point"), "{error}");
    }
}
