#include "lockstep/tensor/slice_index.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/json_depth.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr std::size_t kMostSlices = 4096;  // per tensor: all pairs are compared

std::vector<std::int64_t> integers(const json& list) {
  std::vector<std::int64_t> values;
  if (!list.is_array()) throw std::invalid_argument("a list is missing");
  for (const json& value : list) {
    if (!value.is_number_unsigned()) throw std::invalid_argument("an extent is not a whole number");
    values.push_back(value.get<std::int64_t>());
  }
  return values;
}

StoredSlice slice_of(const json& entry) {
  StoredSlice slice;
  const json& file = entry.at("file");
  if (!file.is_number_unsigned()) {
    throw std::invalid_argument("the number of a file is " + file.dump());
  }
  slice.file = file.get<std::size_t>();
  slice.name = entry.at("name").get<std::string>();
  slice.begin = integers(entry.at("begin"));
  slice.shape = Shape(integers(entry.at("shape")));
  const std::string digits = entry.at("crc32c").get<std::string>();
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, slice.checksum, 16);
  if (error != std::errc() || stop != end)
    throw std::invalid_argument("a checksum is not a number");
  return slice;
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

bool overlap(const StoredSlice& a, const StoredSlice& b) {
  for (std::size_t axis = 0; axis < a.begin.size(); ++axis) {
    if (a.begin[axis] >= b.begin[axis] + b.shape[axis]) return false;
    if (b.begin[axis] >= a.begin[axis] + a.shape[axis]) return false;
  }
  return a.shape.elements() > 0 && b.shape.elements() > 0;
}

// Slices that are inside the tensor, do not overlap and together have as many elements leave no
// gap.
void check(const std::string& file, const std::string& name, const SlicedTensor& tensor) {
  const auto reject = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fail<DataError>("{}: tensor \"{}\" {}", file, name,
                    fmt::format(format, std::forward<Args>(args)...));
  };
  if (tensor.slices.size() > kMostSlices) {
    reject("has {} slices, more than {}", tensor.slices.size(), kMostSlices);
  }
  std::int64_t covered = 0;
  for (std::size_t i = 0; i < tensor.slices.size(); ++i) {
    const StoredSlice& slice = tensor.slices[i];
    const auto rank = static_cast<std::size_t>(tensor.shape.rank());
    bool inside =
        slice.begin.size() == rank && static_cast<std::size_t>(slice.shape.rank()) == rank;
    for (std::size_t axis = 0; inside && axis < rank; ++axis) {
      const std::int64_t begin = slice.begin[axis];
      inside = begin >= 0 && begin <= tensor.shape[axis] &&
               slice.shape[axis] <= tensor.shape[axis] - begin;
    }
    if (!inside) {
      reject("is {} but has the slice {} at ({})", tensor.shape, slice.shape,
             fmt::join(slice.begin, ", "));
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (overlap(slice, tensor.slices[j])) {
        reject("has two slices that overlap: {} at ({}) and {} at ({})", slice.shape,
               fmt::join(slice.begin, ", "), tensor.slices[j].shape,
               fmt::join(tensor.slices[j].begin, ", "));
      }
    }
    covered += slice.shape.elements();  // at most as many as the tensor has: none overlap
  }
  if (covered != tensor.shape.elements()) {
    reject("is {}, but its slices have {} of {} elements", tensor.shape, covered,
           tensor.shape.elements());
  }
}

}  // namespace

std::string index_text(const SliceIndex& index) {
  const auto list = [](auto dims) { return std::vector<std::int64_t>(dims.begin(), dims.end()); };
  json tensors = json::object();
  for (const auto& [name, tensor] : index.tensors) {
    json slices = json::array();
    for (const StoredSlice& slice : tensor.slices) {
      slices.push_back({{"file", slice.file},
                        {"name", slice.name},
                        {"begin", slice.begin},
                        {"shape", list(slice.shape.dims())},
                        {"crc32c", fmt::format("{:08x}", slice.checksum)}});
    }
    tensors[name] = {{"dtype", name_of(tensor.dtype)},
                     {"shape", list(tensor.shape.dims())},
                     {"slices", std::move(slices)}};
  }
  return json{{"files", index.files}, {"bytes", index.bytes}, {"tensors", std::move(tensors)}}
      .dump();
}

SliceIndex parse_index(std::string_view text, const std::string& file) {
  SliceIndex index;
  try {
    if (nests_too_deep(text)) throw std::invalid_argument("it nests too deeply");
    const json root = json::parse(text);
    index.files = root.at("files").get<std::vector<std::string>>();
    if (root.contains("bytes")) {
      for (const std::int64_t bytes : integers(root.at("bytes"))) {
        index.bytes.push_back(static_cast<std::uint64_t>(bytes));
      }
      if (!index.bytes.empty() && index.bytes.size() != index.files.size()) {
        throw std::invalid_argument("it does not have a size for every file");
      }
    }
    const json& tensors = root.at("tensors");
    if (!tensors.is_object()) throw std::invalid_argument("the tensors are not an object");
    for (const auto& [name, entry] : tensors.items()) {
      SlicedTensor tensor;
      tensor.dtype = dtype_named(entry.at("dtype").get<std::string>());
      tensor.shape = Shape(integers(entry.at("shape")));
      for (const json& slice : entry.at("slices")) tensor.slices.push_back(slice_of(slice));
      index.tensors.emplace(name, std::move(tensor));
    }
  } catch (const std::exception& error) {  // from the JSON library, or an impossible value
    fail<DataError>("{}: its index of slices is damaged: {}", file, error.what());
  }
  expect_whole(index, file);
  return index;
}

void expect_whole(const SliceIndex& index, const std::string& file) {
  for (const std::string& name : index.files) {
    if (!is_plain_name(name)) {
      fail<DataError>("{}: its index names the file '{}', which is not in the same folder", file,
                      name);
    }
  }
  for (const auto& [name, tensor] : index.tensors) {
    for (const StoredSlice& slice : tensor.slices) {
      if (slice.file >= index.files.size()) {
        fail<DataError>("{}: tensor \"{}\" has a slice in file {} of {}", file, name, slice.file,
                        index.files.size());
      }
    }
    check(file, name, tensor);
  }
}

}  // namespace lockstep
