//! The parameters of calls.

use super::reply::Failure;
use crate::core::usage::Page;

/// Maximum number of elements of one answer; `cursor` leads to the next ones.
pub const MAX_COUNT: usize = 1_000;

/// The query of an address, such as `count=5&domain=shop`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Decodes it.
    pub fn new(query: &str) -> Self {
        let pairs = form_urlencoded::parse(query.as_bytes());
        Self(pairs.into_owned().collect())
    }

    /// The parameter of this name, if it is there and not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.all(name).find(|value| !value.is_empty())
    }

    /// All parameters of this name, in order.
    pub fn all<'q>(&'q self, name: &str) -> impl Iterator<Item = &'q str> {
        let named = self.0.iter().filter(move |(known, _)| known == name);
        named.map(|(_, value)| value.as_str())
    }

    /// The elements of the answer: `count` of them, or as many as usual, after the elements that
    /// `cursor` skips.
    ///
    /// # Errors
    /// 400: see [`Query::count`], or the cursor did not come from an answer.
    pub fn page(&self, usual: usize) -> Result<Page, Failure> {
        let count = self.count(usual)?;
        let offset = self.get("cursor").unwrap_or("0").parse();
        let wrong = |_| Failure::bad_request("cursor: write `next` of the previous response");
        let offset = offset.map_err(wrong)?;
        Ok(Page { offset, count })
    }

    /// `count`: the most elements of the answer, from 1 to [`MAX_COUNT`].
    ///
    /// # Errors
    /// 400: another number, or none.
    pub fn count(&self, default: usize) -> Result<usize, Failure> {
        let Some(text) = self.get("count") else {
            return Ok(default);
        };
        let count = text.parse().ok();
        let count = count.filter(|count| (1..=MAX_COUNT).contains(count));
        count.ok_or_else(|| Failure::bad_request(&format!("count: write 1 to {MAX_COUNT}")))
    }

    /// Whether the parameter of this name is true.
    ///
    /// # Errors
    /// 400: neither true nor false.
    pub fn is(&self, name: &str) -> Result<bool, Failure> {
        let is = self.get(name).unwrap_or("false").parse();
        is.map_err(|_| Failure::bad_request(&format!("{name}: write true, or leave it out")))
    }
}

/// The cursor of the page after this one, in a list of so many elements; `None` after the last.
pub fn next(Page { offset, count }: Page, total: usize) -> Option<String> {
    let end = offset.saturating_add(count);
    (end < total).then(|| end.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_and_bounded() {
        let query = Query::new("entry=user%3D42&domain=&entry=a+b%26c&count=7&cursor=20");
        assert_eq!(query.all("entry").collect::<Vec<_>>(), ["user=42", "a b&c"]);
        assert_eq!((query.get("domain"), query.get("none")), (None, None));
        assert_eq!(
            query.page(5),
            Ok(Page {
                count: 7,
                offset: 20
            })
        );
        assert_eq!(Query::default().count(5), Ok(5));
        for wrong in ["count=0", "count=1001", "count=-1", "count=x"] {
            assert!(Query::new(wrong).count(5).is_err(), "{wrong}");
        }
        assert!(Query::new("cursor=x").page(5).is_err());
        assert_eq!(
            (
                Query::default().is("ended"),
                Query::new("ended=true").is("ended")
            ),
            (Ok(false), Ok(true))
        );
        assert!(Query::new("ended=1").is("ended").is_err());
    }
}
