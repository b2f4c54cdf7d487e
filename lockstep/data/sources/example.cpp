// Records are parsed in place: one pass over the wire format (example_wire.h) finds the requested
// features, and their values are decoded directly into tensors. Encodings that the format allows
// but no writer produces (such as a list in two pieces) are first normalised by protobuf.
#include "lockstep/data/sources/example.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/data/sources/example.pb.h"
#include "lockstep/data/sources/example_wire.h"

namespace lockstep {
namespace {

using example_wire::Found;
using example_wire::Kind;
using example_wire::Wire;

constexpr std::size_t kMostNamed = 10;  // names of features in a message

std::string_view describe(Kind kind) {
  switch (kind) {
    case Kind::Bytes:
      return "bytes (bytes_list)";
    case Kind::Floats:
      return "floats (float_list)";
    case Kind::Integers:
      return "integers (int64_list)";
    case Kind::None:
      break;
  }
  return "nothing";
}

Kind kind_read_as(DType dtype) {
  switch (dtype) {
    case DType::U8:
      return Kind::Bytes;
    case DType::F32:
    case DType::F64:
      return Kind::Floats;
    case DType::I32:
    case DType::I64:
    case DType::Bool:
      return Kind::Integers;
    case DType::F16:
    case DType::BF16:
      break;
  }
  return Kind::None;
}

// Fills a tensor from element `begin` on.
void fill(Tensor& tensor, std::size_t begin, double value) {
  dispatch(tensor.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::span<T> values = tensor.values<T>();
    std::fill(values.begin() + static_cast<std::ptrdiff_t>(begin), values.end(),
              static_cast<T>(value));
  });
}

Shape with_rows(std::int64_t rows, std::span<const std::int64_t> row) {
  std::vector<std::int64_t> dims{rows};
  dims.insert(dims.end(), row.begin(), row.end());
  return Shape(std::move(dims));
}

// Makes the tensor of one feature of one record.
class FeatureReader {
 public:
  FeatureReader(const FeatureSpec& spec, std::string_view file, std::int64_t record)
      : spec_(spec), file_(file), record_(record) {}

  Tensor missing() const {
    if (spec_.missing.defined()) {
      if (spec_.missing.shape() == spec_.shape || spec_.length == FeatureLength::Variable) {
        return spec_.missing;
      }
      Tensor tensor(spec_.dtype, spec_.shape);
      fill(tensor, 0, spec_.missing.item());
      return tensor;
    }
    return allocate(0);
  }

  Tensor read(const Found& found) const {
    const Kind expected = kind_read_as(spec_.dtype);
    if (found.kind != expected) {
      fail_feature(fmt::format("it contains {}, but {} is read from {}", describe(found.kind),
                               name_of(spec_.dtype), describe(expected)));
    }
    if (expected == Kind::Bytes) return read_bytes(found.list);
    if (expected == Kind::Floats) return read_floats(found.list);
    if (spec_.dtype == DType::I32) return read_integers<std::int32_t>(found.list);
    if (spec_.dtype == DType::Bool) return read_integers<bool>(found.list);
    return read_integers<std::int64_t>(found.list);
  }

 private:
  [[noreturn]] void fail_feature(const std::string& what) const {
    fail<DataError>("{}: record {}: feature '{}': {}", file_, record_, spec_.name, what);
  }

  // The tensor for this many values, with its padding filled in.
  Tensor allocate(std::size_t values) const {
    const std::span<const std::int64_t> dims = spec_.shape.dims();
    const auto count = static_cast<std::int64_t>(values);
    if (spec_.length == FeatureLength::Fixed) {
      if (count != spec_.shape.elements()) {
        fail_feature(fmt::format(
            "{} values, but the shape {} needs {}{}", count, spec_.shape, spec_.shape.elements(),
            spec_.shape.rank() == 0 ? "; FeatureLength::Variable reads any number" : ""));
      }
      return Tensor(spec_.dtype, spec_.shape);
    }
    const bool padded = spec_.length == FeatureLength::Padded;
    const std::span<const std::int64_t> row = padded ? dims.subspan(1) : dims;
    std::int64_t of_row = 1;
    for (std::int64_t extent : row) of_row *= extent;
    if (of_row == 0 ? count != 0 : count % of_row != 0) {
      fail_feature(fmt::format("{} values do not fill whole rows of {}", count, of_row));
    }
    const std::int64_t rows = of_row == 0 ? 0 : count / of_row;
    if (!padded) return Tensor(spec_.dtype, with_rows(rows, row));
    if (rows > dims[0]) {
      fail_feature(fmt::format("{} rows, but the padded shape {} has room for {}", rows,
                               spec_.shape, dims[0]));
    }
    Tensor tensor(spec_.dtype, spec_.shape);
    if (spec_.pad != 0) fill(tensor, values, spec_.pad);
    return tensor;
  }

  Tensor read_bytes(std::string_view list) const {
    std::string_view bytes;
    std::size_t strings = 0;
    const bool good = example_wire::for_each_string(list, [&](std::string_view value) {
      bytes = value;
      ++strings;
    });
    if (!good) fail_damaged();
    if (strings != 1) {
      fail_feature(fmt::format("{} byte strings, but one was expected", strings));
    }
    Tensor tensor = allocate(bytes.size());
    if (!bytes.empty()) std::memcpy(tensor.raw(), bytes.data(), bytes.size());
    return tensor;
  }

  Tensor read_floats(std::string_view list) const {
    const std::optional<std::size_t> count = example_wire::count_floats(list);
    if (!count) fail_damaged();
    Tensor tensor = allocate(*count);
    if (spec_.dtype == DType::F32) {
      example_wire::copy_floats(list, tensor.values<float>().data());
    } else {
      std::vector<float> values(*count);
      example_wire::copy_floats(list, values.data());
      std::ranges::copy(values, tensor.values<double>().begin());
    }
    return tensor;
  }

  template <class T>
  Tensor read_integers(std::string_view list) const {
    Tensor tensor = allocate(example_wire::count_integers(list));
    T* const begin = tensor.values<T>().data();
    T* to = begin;
    const bool good = example_wire::for_each_integer(list, [&](std::int64_t value) {
      const T narrow = static_cast<T>(value);
      if (static_cast<std::int64_t>(narrow) != value) {
        fail_feature(fmt::format("value {} is {}, which {} cannot hold", to - begin, value,
                                 name_of(spec_.dtype)));
      }
      *to++ = narrow;
    });
    if (!good) fail_damaged();
    return tensor;
  }

  [[noreturn]] void fail_damaged() const { fail_feature("its values are damaged"); }

  const FeatureSpec& spec_;
  std::string_view file_;
  std::int64_t record_;
};

void check(const FeatureSpec& spec) {
  require(kind_read_as(spec.dtype) != Kind::None,
          "[example] feature '{}': {} cannot be read from an Example; f32, f64, i32, i64, bool and "
          "u8 can",
          spec.name, name_of(spec.dtype));
  require(spec.length != FeatureLength::Padded || spec.shape.rank() > 0,
          "[example] feature '{}': a scalar cannot be padded; give the shape to pad to", spec.name);
  if (!spec.missing.defined()) return;
  const Shape& shape = spec.missing.shape();
  const bool fits =
      spec.length == FeatureLength::Variable
          ? shape.rank() == spec.shape.rank() + 1 && with_rows(shape[0], spec.shape.dims()) == shape
          : shape == spec.shape || shape.rank() == 0;
  require(spec.missing.dtype() == spec.dtype && fits,
          "[example] feature '{}': .missing is {} {}, but the feature is {} {}", spec.name,
          name_of(spec.missing.dtype()), shape, name_of(spec.dtype), spec.shape);
}

std::string names_in(std::string_view example) {
  std::vector<std::string> names;
  example_wire::walk(example, [&](std::string_view name, std::string_view) {
    names.push_back(fmt::format("'{}'", name));
    return Wire::Good;
  });
  if (names.empty()) return "none";
  std::ranges::sort(names);
  const std::size_t count = names.size();
  names.resize(std::min(count, kMostNamed));
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return count > kMostNamed ? text + ", …" : text;
}

}  // namespace

ExampleParser::ExampleParser(std::vector<FeatureSpec> features) : features_(std::move(features)) {
  require(!features_.empty(), "[example] there are no features; name at least one");
  for (std::size_t i = 0; i < features_.size(); ++i) {
    check(features_[i]);
    const bool first = by_name_.emplace(features_[i].name, i).second;
    require(first, "[example] feature '{}' is requested twice", features_[i].name);
  }
}

std::vector<Tensor> ExampleParser::parse(std::string_view bytes, std::string_view file,
                                         std::int64_t record) const {
  std::vector<Found> found(features_.size());
  const auto find = [&](std::string_view name, std::string_view feature) {
    const auto at = by_name_.find(name);
    return at == by_name_.end() ? Wire::Good : example_wire::find_list(feature, found[at->second]);
  };
  std::string usual;
  Wire wire = example_wire::walk(bytes, find);
  if (wire == Wire::Unusual) {
    examples::Example example;
    wire = example.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) ? Wire::Good
                                                                                : Wire::Damaged;
    if (wire == Wire::Good) {
      usual = example.SerializeAsString();
      bytes = usual;
      found.assign(features_.size(), {});
      wire = example_wire::walk(bytes, find);
    }
  }
  if (wire != Wire::Good) {
    fail<DataError>("{}: record {}: its {} bytes are not a tf.train.Example", file, record,
                    bytes.size());
  }
  std::vector<Tensor> tensors;
  tensors.reserve(features_.size());
  for (std::size_t i = 0; i < features_.size(); ++i) {
    const FeatureReader reader(features_[i], file, record);
    if (!found[i].present && features_[i].length == FeatureLength::Fixed &&
        !features_[i].missing.defined()) {
      fail<DataError>("{}: record {}: feature '{}' is missing; the record has {}", file, record,
                      features_[i].name, names_in(bytes));
    }
    tensors.push_back(found[i].present ? reader.read(found[i]) : reader.missing());
  }
  return tensors;
}

std::string serialize_example(const std::map<std::string, FeatureValue>& features) {
  examples::Example example;
  for (const auto& [name, value] : features) {
    examples::Entry& entry = *example.mutable_features()->add_entry();
    entry.set_name(name);
    examples::Feature& feature = *entry.mutable_value();
    if (const auto* text = std::get_if<std::string>(&value)) {
      feature.mutable_byte_strings()->add_value(*text);
    } else if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) {
      for (const std::string& part : *texts) feature.mutable_byte_strings()->add_value(part);
    } else if (const auto* floats = std::get_if<std::vector<float>>(&value)) {
      feature.mutable_floats()->mutable_value()->Assign(floats->begin(), floats->end());
    } else {
      const auto& integers = std::get<std::vector<std::int64_t>>(value);
      feature.mutable_integers()->mutable_value()->Assign(integers.begin(), integers.end());
    }
  }
  return example.SerializeAsString();
}

}  // namespace lockstep
