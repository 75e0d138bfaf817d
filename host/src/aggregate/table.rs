//! Readers of points from `.npy` and `.csv` files.

use std::io::{self, BufRead, Read};

use thiserror::Error;

use super::{Points, ShapeError};

/// Error returned by [`npy`] and [`csv`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TableError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The content is invalid.
    #[error("{0}")]
    Data(String),
    /// The rows are not points.
    #[error(transparent)]
    Shape(#[from] ShapeError),
}

fn data(reason: &str) -> TableError {
    TableError::Data(reason.into())
}

/// Longest header that NumPy reads by default.
const MAX_HEADER: u32 = 10_000;

/// Reads points from a file of `size` bytes in the format of `numpy.save`: a 2-D array of little-endian float64.
///
/// # Errors
/// See [`TableError`].
pub fn npy(mut file: impl Read, size: u64) -> Result<Points<'static>, TableError> {
    let (header, start) = npy_header(&mut file)?;
    let (rows, columns, by_column) = npy_shape(&header).map_err(TableError::Data)?;
    let data = size.saturating_sub(start);
    // The shape is untrusted: compare it with the file size before allocating.
    if rows.checked_mul(columns).and_then(|count| (count as u64).checked_mul(8)) != Some(data) {
        let reason = format!("header declares {rows} × {columns} values of 8 bytes, but {data} bytes follow");
        return Err(TableError::Data(reason));
    }
    let mut values = vec![0.0; rows * columns];
    let mut next = || claimed(&mut file).map(f64::from_le_bytes);
    if by_column {
        for index in (0..columns).flat_map(|column| (0..rows).map(move |row| row * columns + column)) {
            values[index] = next()?;
        }
    } else {
        for value in &mut values {
            *value = next()?;
        }
    }
    Ok(Points::new(values, columns)?)
}

/// Returns the text of the header and the offset of the values.
fn npy_header(file: &mut impl Read) -> Result<(String, u64), TableError> {
    let [magic @ .., major, minor] = claimed::<8>(file)?;
    if magic != *b"\x93NUMPY" {
        return Err(data("not a .npy file: it does not begin with \\x93NUMPY"));
    }
    let (length, before) = match (major, minor) {
        (1, 0) => (u16::from_le_bytes(claimed(file)?).into(), 10),
        (2 | 3, 0) => (u32::from_le_bytes(claimed(file)?), 12),
        _ => {
            return Err(TableError::Data(format!(
                "unsupported .npy version {major}.{minor}; expected 1.0, 2.0 or 3.0"
            )));
        }
    };
    if length > MAX_HEADER {
        return Err(TableError::Data(format!("header of {length} bytes exceeds the limit of {MAX_HEADER}")));
    }
    let mut header = Vec::new();
    file.take(length.into()).read_to_end(&mut header)?;
    Ok((String::from_utf8_lossy(&header).into_owned(), before + u64::from(length)))
}

/// Reads the next N bytes; a file that ends before is truncated.
fn claimed<const N: usize>(file: &mut impl Read) -> Result<[u8; N], TableError> {
    let mut bytes = [0; N];
    file.read_exact(&mut bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => data("truncated .npy file"),
        _ => error.into(),
    })?;
    Ok(bytes)
}

/// Returns the number of rows and columns, and whether values are stored column by column.
fn npy_shape(header: &str) -> Result<(usize, usize, bool), String> {
    let malformed =
        || format!("header must be a dictionary of descr, fortran_order and shape, found {:?}", header.trim_end());
    let (descr, by_column, shape) = dictionary(header).ok_or_else(malformed)?;
    if descr != "'<f8'" {
        return Err(format!("unsupported value type {descr}; expected little-endian float64, '<f8'"));
    }
    match *shape {
        [rows, columns] => Ok((rows, columns, by_column)),
        _ => Err(format!("unsupported array of {} dimension(s); expected rows and columns", shape.len())),
    }
}

/// Parses the three entries of a header, in any order.
fn dictionary(header: &str) -> Option<(&str, bool, Vec<usize>)> {
    let (mut descr, mut by_column, mut shape) = (None, None, None);
    let header = header.trim();
    if header.contains(|c: char| c.is_control()) {
        return None;
    }
    let mut rest = header.strip_prefix('{')?.strip_suffix('}')?.trim();
    while !rest.is_empty() {
        let (key, after) = rest.split_once(':')?;
        // Commas within a tuple or a list do not separate entries.
        let end = match after.trim_start().chars().next()? {
            '(' => after.find(')')? + 1,
            '[' => after.rfind(']')? + 1,
            _ => after.find(',').unwrap_or(after.len()),
        };
        let value = after[..end].trim();
        match key.trim_end() {
            "'descr'" => descr = Some(value),
            "'fortran_order'" => by_column = Some(boolean(value)?),
            "'shape'" => shape = Some(tuple(value)?),
            _ => return None,
        }
        rest = after[end..].trim_start();
        rest = if rest.is_empty() { rest } else { rest.strip_prefix(',')?.trim_start() };
    }
    Some((descr?, by_column?, shape?))
}

fn boolean(text: &str) -> Option<bool> {
    match text {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    }
}

fn tuple(text: &str) -> Option<Vec<usize>> {
    let inner = text.strip_prefix('(')?.strip_suffix(')')?.trim();
    let inner = inner.strip_suffix(',').unwrap_or(inner);
    inner.split(',').filter(|_| !inner.is_empty()).map(|number| number.trim().parse().ok()).collect()
}

/// Reads one point per line of comma-separated numbers. Ignores a first line of names, empty lines and comments after `#`.
///
/// # Errors
/// See [`TableError`].
pub fn csv(mut file: impl BufRead) -> Result<Points<'static>, TableError> {
    let (mut values, mut columns, mut line, mut number) = (Vec::new(), None, Vec::new(), 0);
    while file.read_until(b'\n', &mut line)? > 0 {
        number += 1;
        let text = String::from_utf8_lossy(&line);
        let text =
            text.split('#').next().unwrap_or_default().trim_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
        if !text.is_empty() {
            csv_line(text, &mut values, &mut columns)
                .map_err(|reason| TableError::Data(format!("line {number}: {reason}")))?;
        }
        line.clear();
    }
    let columns = columns.ok_or_else(|| data("no line of numbers found"))?;
    Ok(Points::new(values, columns)?)
}

fn csv_line(text: &str, values: &mut Vec<f64>, columns: &mut Option<usize>) -> Result<(), String> {
    let fields = || text.split(',').map(str::trim);
    let found = fields().count();
    let names = columns.is_none() && fields().all(|field| field.parse::<f64>().is_err());
    let expected = *columns.get_or_insert(found);
    if found != expected {
        return Err(format!("expected {expected} field(s) as in the lines before, found {found}"));
    }
    for (index, field) in fields().enumerate().filter(|_| !names) {
        let reason = |_| format!("field {}: {field:?} is not a number", index + 1);
        values.push(field.parse().map_err(reason)?);
    }
    Ok(())
}
