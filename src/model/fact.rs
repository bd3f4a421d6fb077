//! Facts as values: what the judgement says. The sentence of each is its `Display`, which the report gives it; JSON has
//! both, the sentence for people and the value with a stable `code` beside it for programs.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned, ser::SerializeMap};
use std::{
    collections::BTreeMap,
    fmt::Display,
    ops::{Deref, DerefMut},
};

/// A kind of fact, and the names in JSON of a list of them.
pub trait Fact: Display {
    /// The list of sentences.
    const SENTENCES: &'static str;
    /// The list of values.
    const VALUES: &'static str;
}

/// Facts of one kind, in their order. To be flattened into what they are about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts<T>(pub Vec<T>);

impl<T: Fact> Facts<T> {
    /// In words, one sentence each.
    pub fn sentences(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }
}

impl<T> Default for Facts<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Deref for Facts<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.0
    }
}

impl<T> DerefMut for Facts<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.0
    }
}

impl<T> From<Vec<T>> for Facts<T> {
    fn from(facts: Vec<T>) -> Self {
        Self(facts)
    }
}

impl<T> FromIterator<T> for Facts<T> {
    fn from_iter<I: IntoIterator<Item = T>>(facts: I) -> Self {
        Self(facts.into_iter().collect())
    }
}

impl<T: Fact + Serialize> Serialize for Facts<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry(T::SENTENCES, &self.sentences())?;
        map.serialize_entry(T::VALUES, &self.0)?;
        map.end()
    }
}

impl<'de, T: Fact + DeserializeOwned> Deserialize<'de> for Facts<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut lists = BTreeMap::<String, serde_json::Value>::deserialize(deserializer)?;
        let Some(values) = lists.remove(T::VALUES) else { return Ok(Self::default()) };
        serde_json::from_value(values).map(Self).map_err(serde::de::Error::custom)
    }
}
