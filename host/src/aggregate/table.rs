//! Points from a file: `.npy` as NumPy writes it, or `.csv`.

use std::io::{self, BufRead, Read};

use thiserror::Error;

use super::{Points, ShapeError};

/// Why a file has no points.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TableError {
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is read, and makes no sense.
    #[error("{0}")]
    Data(String),
    /// Its rows are no points.
    #[error(transparent)]
    Shape(#[from] ShapeError),
}

fn data(reason: &str) -> TableError {
    TableError::Data(reason.into())
}

/// The longest header that NumPy reads by default.
const MAX_HEADER: u32 = 10_000;

/// Points from an array as `numpy.save` writes it, 2-D and of little-endian float64, in a file of `size` bytes.
///
/// # Errors
/// See [`TableError`].
pub fn npy(mut file: impl Read, size: u64) -> Result<Points<'static>, TableError> {
    let (header, start) = npy_header(&mut file)?;
    let (rows, columns, by_column) = npy_shape(&header).map_err(TableError::Data)?;
    let data = size.saturating_sub(start);
    // The shape is a claim: nothing is allocated by it before the file was seen to hold so much.
    if rows.checked_mul(columns).and_then(|count| (count as u64).checked_mul(8)) != Some(data) {
        let reason = format!("its header promises {rows} × {columns} values of 8 bytes, but {data} bytes follow");
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

/// The header's text, and where the values start.
fn npy_header(file: &mut impl Read) -> Result<(String, u64), TableError> {
    let [magic @ .., major, minor] = claimed::<8>(file)?;
    if magic != *b"\x93NUMPY" {
        return Err(data("it does not begin with the bytes of a .npy file, \\x93NUMPY"));
    }
    let (length, before) = match (major, minor) {
        (1, 0) => (u16::from_le_bytes(claimed(file)?).into(), 10),
        (2 | 3, 0) => (u32::from_le_bytes(claimed(file)?), 12),
        _ => return Err(TableError::Data(format!("version {major}.{minor} of .npy is none of 1.0, 2.0 and 3.0"))),
    };
    if length > MAX_HEADER {
        return Err(TableError::Data(format!("its header of {length} bytes is longer than {MAX_HEADER}")));
    }
    let mut header = Vec::new();
    file.take(length.into()).read_to_end(&mut header)?;
    Ok((String::from_utf8_lossy(&header).into_owned(), before + u64::from(length)))
}

/// The next bytes of a file that must have them.
fn claimed<const N: usize>(file: &mut impl Read) -> Result<[u8; N], TableError> {
    let mut bytes = [0; N];
    file.read_exact(&mut bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => data("it ends too early for a .npy file"),
        _ => error.into(),
    })?;
    Ok(bytes)
}

/// Rows, columns and whether they are stored column by column.
fn npy_shape(header: &str) -> Result<(usize, usize, bool), String> {
    let malformed =
        || format!("its header is no dictionary of descr, fortran_order and shape: {:?}", header.trim_end());
    let (descr, by_column, shape) = dictionary(header).ok_or_else(malformed)?;
    if descr != "'<f8'" {
        return Err(format!("its values have the type {descr}; little-endian float64, '<f8', is needed"));
    }
    match *shape {
        [rows, columns] => Ok((rows, columns, by_column)),
        _ => Err(format!("its array has {} dimension(s); rows and columns are needed", shape.len())),
    }
}

/// The three entries of a header, which may come in any order.
fn dictionary(header: &str) -> Option<(&str, bool, Vec<usize>)> {
    let (mut descr, mut by_column, mut shape) = (None, None, None);
    let header = header.trim();
    if header.contains(|c: char| c.is_control()) {
        return None;
    }
    let mut rest = header.strip_prefix('{')?.strip_suffix('}')?.trim();
    while !rest.is_empty() {
        let (key, after) = rest.split_once(':')?;
        // A comma within a tuple or a list separates no entries.
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

/// Points from lines of numbers with commas between, one point in each. A first line of names, empty lines and what follows a
/// `#` do not count.
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
    let columns = columns.ok_or_else(|| data("it holds no line of numbers"))?;
    Ok(Points::new(values, columns)?)
}

fn csv_line(text: &str, values: &mut Vec<f64>, columns: &mut Option<usize>) -> Result<(), String> {
    let fields = || text.split(',').map(str::trim);
    let found = fields().count();
    let names = columns.is_none() && fields().all(|field| field.parse::<f64>().is_err());
    let expected = *columns.get_or_insert(found);
    if found != expected {
        return Err(format!("{found} field(s), but {expected} in the lines before"));
    }
    for (index, field) in fields().enumerate().filter(|_| !names) {
        let reason = |_| format!("field {}: {field:?} is not a number", index + 1);
        values.push(field.parse().map_err(reason)?);
    }
    Ok(())
}
