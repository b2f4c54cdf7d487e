#include "lockstep/data/sources/cifar.h"

#include <algorithm>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/data/sources/byte_stream.h"
#include "lockstep/data/sources/text.h"

namespace lockstep {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kSide = 32;
constexpr std::int64_t kChannels = 3;
constexpr std::size_t kPlane = kSide * kSide;
constexpr std::size_t kImage = kChannels * kPlane;

struct Layout {
  const char* folder;  // that the archive unpacks to
  std::vector<const char*> train;
  const char* test;
  std::size_t labels;  // bytes of a record before the image
  unsigned classes;    // of the last label
  unsigned coarse_classes;
  const char* names;
  const char* coarse_names;
};

const Layout& layout_of(CifarKind kind) {
  static const Layout ten{"cifar-10-batches-bin",
                          {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                           "data_batch_4.bin", "data_batch_5.bin"},
                          "test_batch.bin",
                          1,
                          10,
                          0,
                          "batches.meta.txt",
                          nullptr};
  static const Layout hundred{
      "cifar-100-binary",     {"train.bin"},           "test.bin", 2, 100, 20,
      "fine_label_names.txt", "coarse_label_names.txt"};
  return kind == CifarKind::Cifar10 ? ten : hundred;
}

std::size_t record_bytes(const Layout& layout) {
  return layout.labels + kImage;
}

// Whether a file exists and is a whole number of records.
bool holds_records(const fs::path& file, std::size_t bytes) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(file, error);
  return !error && size > 0 && size % bytes == 0;
}

bool is_set(const fs::path& folder, const Layout& layout) {
  std::error_code error;
  // The names of CIFAR-10's files are distinctive; many things are called train.bin.
  if (layout.train.size() > 1) return fs::is_regular_file(folder / layout.train[0], error);
  return holds_records(folder / layout.train[0], record_bytes(layout)) &&
         holds_records(folder / layout.test, record_bytes(layout));
}

struct Place {
  CifarKind kind;
  fs::path folder;
};

std::optional<Place> find(const fs::path& directory) {
  for (const CifarKind kind : {CifarKind::Cifar10, CifarKind::Cifar100}) {
    const Layout& layout = layout_of(kind);
    for (const fs::path& folder : {directory, directory / layout.folder}) {
      if (is_set(folder, layout)) return Place{kind, folder};
    }
  }
  return std::nullopt;
}

// How many bytes follow; the stream keeps its position.
std::uint64_t bytes_left(ByteStream& stream) {
  if (!stream.compressed()) return stream.most_left();
  const std::string here = stream.save();
  const std::uint64_t bytes = stream.skip(std::numeric_limits<std::uint64_t>::max());
  stream.restore(here);
  return bytes;
}

std::size_t count_records(ByteStream& stream, const Layout& layout) {
  const std::uint64_t bytes = bytes_left(stream);
  const std::size_t record = record_bytes(layout);
  if (bytes % record != 0) {
    fail<DataError>("{}: {} bytes are not a multiple of the record size {}: record {} is cut short",
                    stream.name(), bytes, record, bytes / record);
  }
  return static_cast<std::size_t>(bytes / record);
}

// Converts planes to interleaved pixels, CHW to HWC.
void interleave(const char* planes, std::uint8_t* pixels) {
  for (std::size_t i = 0; i < kPlane; ++i) {
    for (std::size_t channel = 0; channel < kChannels; ++channel) {
      pixels[kChannels * i + channel] = static_cast<std::uint8_t>(planes[channel * kPlane + i]);
    }
  }
}

std::uint8_t checked_label(char byte, unsigned classes, const std::string& file,
                           std::size_t record) {
  const auto label = static_cast<std::uint8_t>(byte);
  if (label >= classes) {
    fail<DataError>("{}: record {}: its label is {}, but there are {} classes", file, record, label,
                    classes);
  }
  return label;
}

CifarSamples read_samples(std::vector<ByteStream>& files, const Layout& layout) {
  std::vector<std::size_t> counts;
  std::size_t total = 0;
  for (ByteStream& file : files) total += counts.emplace_back(count_records(file, layout));
  const auto rows = static_cast<std::int64_t>(total);
  CifarSamples samples;
  samples.images = Tensor(DType::U8, {rows, kSide, kSide, kChannels});
  samples.labels = Tensor(DType::U8, {rows});
  if (layout.coarse_classes > 0) samples.coarse_labels = Tensor(DType::U8, {rows});
  const std::span<std::uint8_t> images = samples.images.values<std::uint8_t>();
  std::size_t row = 0;
  for (std::size_t f = 0; f < files.size(); ++f) {
    const std::string& name = files[f].name();
    for (std::size_t record = 0; record < counts[f]; ++record, ++row) {
      const std::string_view bytes = files[f].peek(record_bytes(layout));
      if (bytes.size() < record_bytes(layout)) {
        fail<DataError>("{}: the file ended in record {} of {} while it was read", name, record,
                        counts[f]);
      }
      if (layout.coarse_classes > 0) {
        samples.coarse_labels.values<std::uint8_t>()[row] =
            checked_label(bytes[0], layout.coarse_classes, name, record);
      }
      samples.labels.values<std::uint8_t>()[row] =
          checked_label(bytes[layout.labels - 1], layout.classes, name, record);
      interleave(bytes.data() + layout.labels, images.data() + row * kImage);
      files[f].consume(record_bytes(layout));
    }
  }
  return samples;
}

std::vector<std::string> read_names(const fs::path& file, unsigned classes) {
  std::error_code error;
  if (!fs::exists(file, error)) return {};
  std::vector<std::string> names;
  LineReader lines(file);
  while (const std::optional<std::string_view> line = lines.next()) {
    if (!line->empty()) names.emplace_back(*line);
  }
  if (names.size() != classes) {
    fail<DataError>("{}: {} names, but there are {} classes", file.string(), names.size(), classes);
  }
  return names;
}

}  // namespace

std::optional<CifarKind> cifar_kind(const fs::path& directory) {
  const std::optional<Place> place = find(directory);
  return place ? std::optional(place->kind) : std::nullopt;
}

Cifar load_cifar(const fs::path& directory) {
  const std::optional<Place> place = find(directory);
  if (!place) {
    fail<DataError>(
        "{}: holds neither CIFAR-10 (data_batch_1.bin …) nor CIFAR-100 (train.bin, test.bin) in "
        "the binary version",
        directory.string());
  }
  const Layout& layout = layout_of(place->kind);
  std::vector<ByteStream> train;
  for (const char* file : layout.train) train.emplace_back(place->folder / file);
  std::vector<ByteStream> test;
  test.emplace_back(place->folder / layout.test);
  Cifar cifar;
  cifar.kind = place->kind;
  cifar.class_names = read_names(place->folder / layout.names, layout.classes);
  if (layout.coarse_names != nullptr) {
    cifar.coarse_class_names =
        read_names(place->folder / layout.coarse_names, layout.coarse_classes);
  }
  cifar.train = read_samples(train, layout);
  cifar.test = read_samples(test, layout);
  return cifar;
}

CifarSamples parse_cifar(std::string_view bytes, CifarKind kind, const std::string& name) {
  std::vector<ByteStream> file;
  file.emplace_back(view_bytes(bytes, name));
  return read_samples(file, layout_of(kind));
}

}  // namespace lockstep
