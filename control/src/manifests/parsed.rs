//! Texts of manifests, parsed at the same time and once.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::num::NonZero;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use super::documents::{self, Document};

/// The documents of texts. Readers that share one parse equal texts once.
#[derive(Debug, Default)]
pub struct Parsed(Mutex<HashMap<Text, Arc<OnceLock<Vec<Document>>>>>);

/// The content of a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Text {
    pub(super) is_json: bool,
    pub(super) text: Arc<[u8]>,
}

impl Parsed {
    /// Parses those of these texts that no other thread has begun with, on every core.
    pub(super) fn parse(&self, texts: &[&Text]) {
        let work = || {
            for text in texts {
                if let Some(fresh) = self.begin(text) {
                    fresh.get_or_init(|| documents::parse(text));
                }
            }
        };
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        thread::scope(|scope| {
            for _ in 1..cores.min(texts.len()) {
                scope.spawn(work);
            }
            work();
        });
    }

    /// The documents of a text, once they are parsed.
    pub(super) fn documents(&self, text: &Text) -> Vec<Document> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(text).cloned();
        known.unwrap_or_default().get_or_init(|| documents::parse(text)).clone()
    }

    /// The place of a text's documents, for the first caller.
    fn begin(&self, text: &Text) -> Option<Arc<OnceLock<Vec<Document>>>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match known.entry(text.clone()) {
            Entry::Vacant(free) => Some(Arc::clone(free.insert(Arc::default()))),
            Entry::Occupied(_) => None,
        }
    }
}
