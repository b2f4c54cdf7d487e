#include "lockstep/tensor/sliced_file.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/tensor/host_file.h"
#include "lockstep/tensor/safetensors_header.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using safetensors::Entry;

const std::string kIndexTensor = "__slices__";
const std::string kShapePrefix = "shape/";  // in the metadata of a file of slices
// Saves are numbered from here on in each generation after the first.
constexpr std::int64_t kSavesPerGeneration = 1'000'000;

// A safetensors file whose tensors are read one by one.
class OpenFile {
 public:
  explicit OpenFile(const fs::path& path) : name_(path.string()), bytes_(path) {
    std::vector<std::byte> header(
        std::min<std::uint64_t>(bytes_.size(), safetensors::kLengthBytes));
    bytes_.read(0, header);
    header.resize(safetensors::header_size(header, bytes_.size(), name_));
    bytes_.read(0, header);
    header_ = safetensors::parse_header(header, bytes_.size(), name_);
    checksum_ = safetensors::checksum_of(header);
  }

  std::uint64_t size() const { return bytes_.size(); }
  std::uint32_t checksum() const { return checksum_; }  // of the header

  const safetensors::Header& header() const { return header_; }
  const std::string& name() const { return name_; }

  const Entry* find(const std::string& tensor) const {
    const auto found = std::ranges::find(header_.entries, tensor, &Entry::name);
    return found == header_.entries.end() ? nullptr : &*found;
  }

  Tensor read(const Entry& entry) const {
    Tensor tensor(entry.dtype, entry.shape);
    const std::span<std::byte> bytes(tensor.raw(), tensor.bytes());
    bytes_.read(header_.data_begin + entry.begin, bytes);
    safetensors::check_tensor(entry, bytes, name_);
    return tensor;
  }

 private:
  std::string name_;
  FileReader bytes_;
  safetensors::Header header_;
  std::uint32_t checksum_ = 0;
};

// A box of elements: an offset and an extent per axis.
struct Box {
  std::vector<std::int64_t> begin;
  std::vector<std::int64_t> extent;
};

std::optional<Box> intersection(std::span<const std::int64_t> a_begin, const Shape& a,
                                std::span<const std::int64_t> b_begin, const Shape& b) {
  Box box;
  for (std::size_t axis = 0; axis < a_begin.size(); ++axis) {
    const std::int64_t begin = std::max(a_begin[axis], b_begin[axis]);
    const std::int64_t end = std::min(a_begin[axis] + a[axis], b_begin[axis] + b[axis]);
    if (begin >= end) return std::nullopt;
    box.begin.push_back(begin);
    box.extent.push_back(end - begin);
  }
  return box;
}

// Copies the box from one slice of a tensor to another, row by row of the last axis.
void copy_box(const Box& box, const Tensor& from, std::span<const std::int64_t> from_begin,
              Tensor& to, std::span<const std::int64_t> to_begin) {
  const std::size_t size = size_of(to.dtype());
  const std::size_t rank = box.begin.size();
  if (rank == 0) {
    std::memcpy(to.raw(), from.raw(), size);
    return;
  }
  std::vector<std::int64_t> at(rank, 0);
  const auto offset = [&](const Shape& shape, std::span<const std::int64_t> begin) {
    std::int64_t place = 0;
    for (std::size_t axis = 0; axis < rank; ++axis) {
      place = place * shape[axis] + box.begin[axis] + at[axis] - begin[axis];
    }
    return static_cast<std::size_t>(place) * size;
  };
  const std::size_t row = static_cast<std::size_t>(box.extent.back()) * size;
  for (;;) {
    std::memcpy(to.raw() + offset(to.shape(), to_begin),
                from.raw() + offset(from.shape(), from_begin), row);
    std::size_t axis = rank - 1;
    while (axis > 0 && ++at[axis - 1] == box.extent[axis - 1]) at[--axis] = 0;
    if (axis == 0) return;
  }
}

// The save number in "<stem>.<number>.<n>-of-<m><extension>", if the name has this form.
std::optional<std::int64_t> save_of(const std::string& name, const fs::path& index) {
  const std::string prefix = index.stem().string() + ".";
  const std::string suffix = index.extension().string();
  if (!name.starts_with(prefix) || !name.ends_with(suffix)) return std::nullopt;
  if (name.size() < prefix.size() + suffix.size()) return std::nullopt;
  const char* at = name.data() + prefix.size();
  const char* end = name.data() + name.size() - suffix.size();
  std::int64_t numbers[3] = {};
  const std::string_view separators[3] = {".", "-of-", ""};
  for (int i = 0; i < 3; ++i) {
    const auto [stop, error] = std::from_chars(at, end, numbers[i]);
    const std::string_view rest(stop, static_cast<std::size_t>(end - stop));
    if (error != std::errc() || numbers[i] < 0 || !rest.starts_with(separators[i]))
      return std::nullopt;
    at = stop + separators[i].size();
  }
  if (at != end) return std::nullopt;
  return numbers[0];
}

// "4,6"; nothing for a scalar.
std::vector<std::int64_t> numbers_in(std::string_view text) {
  std::vector<std::int64_t> numbers;
  while (!text.empty()) {
    std::int64_t number = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || number < 0) fail<DataError>("'{}' is not a list of numbers", text);
    numbers.push_back(number);
    text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
    if (text.starts_with(',')) text.remove_prefix(1);
  }
  return numbers;
}

fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

template <class Use>
void for_slice_files(const fs::path& index, Use use) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_of(index), ignored)) {
    if (const auto save = save_of(entry.path().filename().string(), index)) {
      use(*save, entry.path());
    }
  }
}

}  // namespace

std::int64_t next_save(const fs::path& index, std::uint64_t generation) {
  std::int64_t last =
      (static_cast<std::int64_t>(std::max<std::uint64_t>(generation, 1)) - 1) * kSavesPerGeneration;
  const std::int64_t end = last + kSavesPerGeneration;
  for_slice_files(index, [&](std::int64_t save, const fs::path&) {
    if (save < end) last = std::max(last, save);
  });
  require(last + 1 < end, "[save] {} has been saved {} times: choose another name", index.string(),
          kSavesPerGeneration);
  return last + 1;
}

fs::path slice_file(const fs::path& index, std::int64_t save, int writer, int writers) {
  fs::path file = index;
  file.replace_filename(fmt::format("{}.{}.{}-of-{}{}", index.stem().string(), save, writer,
                                    writers, index.extension().string()));
  return file;
}

SliceFile write_slices(const fs::path& file, std::span<const TensorSlice> slices) {
  SliceFile written{.file = file.filename().string(), .bytes = 0, .tensors = {}};
  TensorFile contents;
  contents.metadata = {{"format", "lockstep"}, {"kind", "slices"}};
  for (const TensorSlice& slice : slices) {
    require(slice.value.defined(), "[save] there is no slice of the tensor '{}'", slice.name);
    const std::string name = fmt::format("{}@{}", slice.name, fmt::join(slice.begin, ","));
    require(contents.tensors.emplace(name, slice.value).second,
            "[save] {}: the tensor '{}' has two slices at ({})", file.string(), slice.name,
            fmt::join(slice.begin, ", "));
    SlicedTensor& tensor = written.tensors[slice.name];
    require(tensor.slices.empty() ||
                (tensor.dtype == slice.value.dtype() && tensor.shape == slice.whole),
            "[save] slices of the tensor '{}' do not agree: {} {} and {} {}", slice.name,
            name_of(tensor.dtype), tensor.shape, name_of(slice.value.dtype()), slice.whole);
    tensor.dtype = slice.value.dtype();
    tensor.shape = slice.whole;
    contents.metadata[kShapePrefix + slice.name] =
        fmt::format("{}", fmt::join(slice.whole.dims(), ","));
    tensor.slices.push_back(
        {.file = 0,
         .name = name,
         .begin = slice.begin,
         .shape = slice.value.shape(),
         .checksum = safetensors::checksum_of({slice.value.raw(), slice.value.bytes()})});
  }
  save_safetensors(file, contents);
  written.bytes = FileReader(file).size();
  return written;
}

SliceFile slices_in(const fs::path& file) {
  const OpenFile open(file);
  SliceFile found{.file = file.filename().string(), .bytes = open.size(), .tensors = {}};
  for (const Entry& entry : open.header().entries) {
    const std::size_t at = entry.name.rfind('@');
    const std::string name = entry.name.substr(0, at);
    const auto shape = open.header().metadata.find(kShapePrefix + name);
    if (at == std::string::npos || shape == open.header().metadata.end() || !entry.checksum) {
      fail<DataError>("{}: the tensor \"{}\" is not a slice", file.string(), entry.name);
    }
    SlicedTensor& tensor = found.tensors[name];
    tensor.dtype = entry.dtype;
    tensor.shape = Shape(numbers_in(shape->second));
    tensor.slices.push_back({.file = 0,
                             .name = entry.name,
                             .begin = numbers_in(std::string_view(entry.name).substr(at + 1)),
                             .shape = entry.shape,
                             .checksum = *entry.checksum});
  }
  return found;
}

void write_index(const fs::path& index, std::int64_t save, const TensorFile& contents,
                 std::span<const SliceFile> files) {
  write_index(index, contents, files);
  remove_saves_before(index, save);
}

void remove_saves_before(const fs::path& index, std::int64_t save) {
  for_slice_files(index, [&](std::int64_t other, const fs::path& file) {
    std::error_code ignored;
    if (other < save) fs::remove(file, ignored);
  });
}

void remove_tensors(const fs::path& file) {
  std::error_code ignored;
  fs::remove(file, ignored);
  for_slice_files(file, [&](std::int64_t, const fs::path& slices) { fs::remove(slices, ignored); });
}

std::uint32_t header_checksum(const fs::path& file) {
  return OpenFile(file).checksum();
}

void write_index(const fs::path& index, const TensorFile& contents,
                 std::span<const SliceFile> files) {
  SliceIndex whole;
  for (std::size_t i = 0; i < files.size(); ++i) {
    whole.files.push_back(files[i].file);
    whole.bytes.push_back(files[i].bytes);
    for (const auto& [name, part] : files[i].tensors) {
      SlicedTensor& tensor = whole.tensors[name];
      require(tensor.slices.empty() || (tensor.dtype == part.dtype && tensor.shape == part.shape),
              "[save] slices of the tensor '{}' do not agree: {} {} and {} {}", name,
              name_of(tensor.dtype), tensor.shape, name_of(part.dtype), part.shape);
      require(!contents.tensors.contains(name) && !contents.rows.contains(name),
              "[save] the tensor '{}' is in slices and in the index itself", name);
      tensor.dtype = part.dtype;
      tensor.shape = part.shape;
      for (StoredSlice slice : part.slices) {
        slice.file = i;
        tensor.slices.push_back(std::move(slice));
      }
    }
  }
  try {
    expect_whole(whole, index.string());
  } catch (const DataError& error) {  // about what is to be written, not about a file
    fail<UsageError>("[save] {}", error.what());
  }
  TensorFile all = contents;
  const std::string text = index_text(whole);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  require(all.tensors
              .emplace(kIndexTensor,
                       Tensor::of<std::uint8_t>(std::span(bytes, text.size()), {std::ssize(text)}))
              .second,
          "[save] no tensor may be called '{}'", kIndexTensor);
  save_safetensors(index, all);
}

struct TensorReader::Impl {
  explicit Impl(const fs::path& path) : file(path) {
    const Entry* entry = file.find(kIndexTensor);
    if (entry == nullptr) return;
    const Tensor text = file.read(*entry);
    index = parse_index({reinterpret_cast<const char*>(text.raw()), text.bytes()}, file.name());
    for (const std::string& name : index.files) {
      const fs::path slice_path = folder_of(path) / name;
      std::error_code ignored;
      if (!fs::exists(slice_path, ignored)) {
        fail<DataError>("{}: its index lists the file {}, which is missing", file.name(),
                        slice_path.string());
      }
      const std::uint64_t bytes = fs::file_size(slice_path, ignored);
      const std::size_t i = files.size();
      if (!index.bytes.empty() && bytes != index.bytes[i]) {
        fail<DataError>(
            "{}: it has {} bytes, but the index {} lists {}: it is damaged, or belongs "
            "to another checkpoint",
            slice_path.string(), bytes, file.name(), index.bytes[i]);
      }
      files.push_back(std::make_unique<OpenFile>(slice_path));
    }
    for (const auto& [name, tensor] : index.tensors) {
      for (const StoredSlice& slice : tensor.slices) check(name, tensor, slice);
    }
  }

  // Checks that the file holds this slice, from the same save as the index.
  void check(const std::string& name, const SlicedTensor& tensor, const StoredSlice& slice) const {
    const OpenFile& holder = *files[slice.file];
    const Entry* entry = holder.find(slice.name);
    if (entry == nullptr || entry->dtype != tensor.dtype || !(entry->shape == slice.shape) ||
        entry->checksum != slice.checksum) {
      fail<DataError>(
          "{}: tensor \"{}\": the file does not hold the slice {} at ({}) that the index {} lists: "
          "they belong to different checkpoints",
          holder.name(), name, slice.shape, fmt::join(slice.begin, ", "), file.name());
    }
  }

  const SlicedTensor* sliced(const std::string& name) const {
    const auto found = index.tensors.find(name);
    return found == index.tensors.end() ? nullptr : &found->second;
  }

  const Entry& plain(const std::string& name) const {
    const Entry* entry = file.find(name);
    require(entry != nullptr && name != kIndexTensor, "[load] {}: there is no tensor '{}'",
            file.name(), name);
    return *entry;
  }

  OpenFile file;
  SliceIndex index;
  std::vector<std::unique_ptr<OpenFile>> files;
};

TensorReader::TensorReader(const fs::path& file) : impl_(std::make_unique<Impl>(file)) {}

TensorReader::~TensorReader() = default;

const std::map<std::string, std::string>& TensorReader::metadata() const {
  return impl_->file.header().metadata;
}

std::vector<std::string> TensorReader::names() const {
  std::vector<std::string> names;
  for (const Entry& entry : impl_->file.header().entries) {
    if (entry.name != kIndexTensor) names.push_back(entry.name);
  }
  for (const auto& [name, tensor] : impl_->index.tensors) names.push_back(name);
  return names;
}

DType TensorReader::dtype(const std::string& name) const {
  const SlicedTensor* tensor = impl_->sliced(name);
  return tensor != nullptr ? tensor->dtype : impl_->plain(name).dtype;
}

const Shape& TensorReader::shape(const std::string& name) const {
  const SlicedTensor* tensor = impl_->sliced(name);
  return tensor != nullptr ? tensor->shape : impl_->plain(name).shape;
}

Tensor TensorReader::read(const std::string& name) const {
  if (impl_->sliced(name) == nullptr) return impl_->file.read(impl_->plain(name));
  const Shape& whole = shape(name);
  return read_slice(name, std::vector<std::int64_t>(static_cast<std::size_t>(whole.rank()), 0),
                    whole);
}

Tensor TensorReader::read_slice(const std::string& name, std::span<const std::int64_t> begin,
                                const Shape& wanted) const {
  const Shape& whole = shape(name);
  const auto rank = static_cast<std::size_t>(whole.rank());
  bool inside = begin.size() == rank && static_cast<std::size_t>(wanted.rank()) == rank;
  for (std::size_t axis = 0; inside && axis < rank; ++axis) {
    inside =
        begin[axis] >= 0 && begin[axis] <= whole[axis] && wanted[axis] <= whole[axis] - begin[axis];
  }
  require(inside, "[load] {}: the tensor '{}' is {} and has no slice {} at ({})",
          impl_->file.name(), name, whole, wanted, fmt::join(begin, ", "));
  Tensor result(dtype(name), wanted);
  const auto take = [&](std::span<const std::int64_t> at, const Shape& shape, auto&& read) {
    if (const auto box = intersection(begin, wanted, at, shape)) {
      copy_box(*box, read(), at, result, begin);
    }
  };
  const SlicedTensor* tensor = impl_->sliced(name);
  if (tensor == nullptr) {
    take(std::vector<std::int64_t>(rank, 0), whole, [&] { return read(name); });
    return result;
  }
  for (const StoredSlice& slice : tensor->slices) {
    const OpenFile& holder = *impl_->files[slice.file];
    take(slice.begin, slice.shape, [&] { return holder.read(*holder.find(slice.name)); });
  }
  return result;
}

TensorFile load_tensors(const fs::path& file) {
  TensorFile contents = load_safetensors(file);
  if (contents.tensors.erase(kIndexTensor) == 0) return contents;
  const TensorReader reader(file);
  for (const std::string& name : reader.names()) {
    if (!contents.tensors.contains(name)) contents.tensors.emplace(name, reader.read(name));
  }
  return contents;
}

}  // namespace lockstep
