// The format has no padding between tensors and allows none: the tensors' bytes, in the order of
// their offsets, fill the rest of the file exactly. Tensors are therefore written widest dtype
// first, after a header padded to a multiple of eight, which aligns every one of them in the file
// and in the buffer that a reader fills from it.
#include "lockstep/tensor/safetensors.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/tensor/host_file.h"
#include "lockstep/tensor/safetensors_header.h"

namespace lockstep {
namespace {

using safetensors::Entry;
using safetensors::Header;

Tensor tensor_at(const std::shared_ptr<Buffer>& buffer, std::size_t offset, const Entry& entry) {
  if (offset % size_of(entry.dtype) == 0) return Tensor(entry.dtype, entry.shape, buffer, offset);
  Tensor aligned(entry.dtype, entry.shape);
  if (aligned.bytes() > 0) std::memcpy(aligned.raw(), buffer->data() + offset, aligned.bytes());
  return aligned;
}

TensorFile read(const std::shared_ptr<Buffer>& buffer, const std::string& name) {
  const std::span<const std::byte> bytes(buffer->data(), buffer->bytes());
  const std::uint64_t size = safetensors::header_size(bytes, bytes.size(), name);
  Header header = safetensors::parse_header(bytes.first(size), bytes.size(), name);
  TensorFile file;
  file.metadata = std::move(header.metadata);
  for (const Entry& entry : header.entries) {
    const std::size_t offset = header.data_begin + entry.begin;
    safetensors::check_tensor(entry, bytes.subspan(offset, entry.end - entry.begin), name);
    file.tensors.emplace(entry.name, tensor_at(buffer, offset, entry));
  }
  return file;
}

// A tensor to write, and the blocks of bytes that it is made of.
struct Item {
  Entry entry;
  std::vector<std::span<const std::byte>> pieces;
};

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {tensor.raw(), tensor.bytes()};
}

Item row_of(const std::string& file, const std::string& name, const std::vector<Tensor>& tensors) {
  require(!tensors.empty(), "[safetensors] {}: the row \"{}\" has no tensors", file, name);
  Item item;
  item.entry = {.name = name, .dtype = tensors.front().dtype(), .shape = {}, .checksum = {}};
  std::int64_t values = 0;
  for (const Tensor& tensor : tensors) {
    require(tensor.dtype() == item.entry.dtype,
            "[safetensors] {}: the row \"{}\" has tensors of {} and {}", file, name,
            name_of(item.entry.dtype), name_of(tensor.dtype()));
    values += tensor.elements();
    item.pieces.push_back(bytes_of(tensor));
  }
  item.entry.shape = Shape{values};
  return item;
}

std::vector<Item> items_of(const std::string& file, const TensorFile& contents) {
  std::vector<Item> items;
  for (const auto& [name, tensor] : contents.tensors) {
    require(tensor.defined(), "[safetensors] {}: the tensor \"{}\" is undefined", file, name);
    items.push_back(
        {.entry = {.name = name, .dtype = tensor.dtype(), .shape = tensor.shape(), .checksum = {}},
         .pieces = {bytes_of(tensor)}});
  }
  for (const auto& [name, tensors] : contents.rows) {
    require(!contents.tensors.contains(name),
            "[safetensors] {}: there are two tensors called \"{}\"", file, name);
    items.push_back(row_of(file, name, tensors));
  }
  std::ranges::stable_sort(items, std::greater{},
                           [](const Item& item) { return size_of(item.entry.dtype); });
  std::uint64_t place = 0;
  for (Item& item : items) {
    item.entry.begin = place;
    std::uint32_t checksum = 0;
    for (const std::span<const std::byte> piece : item.pieces) {
      checksum = safetensors::checksum_of(piece, checksum);
      place += piece.size();
    }
    item.entry.end = place;
    item.entry.checksum = checksum;
  }
  return items;
}

// Calls append(bytes) with one block of the file after the other.
template <class Append>
void write(const std::string& name, const TensorFile& contents, Append&& append) {
  const std::vector<Item> items = items_of(name, contents);
  std::vector<Entry> entries;
  for (const Item& item : items) entries.push_back(item.entry);
  const std::string header = safetensors::header_bytes(entries, contents.metadata, name);
  append(std::as_bytes(std::span(header)));
  for (const Item& item : items) {
    for (const std::span<const std::byte> piece : item.pieces) append(piece);
  }
}

}  // namespace

void save_safetensors(const std::filesystem::path& file, const TensorFile& contents) {
  std::optional<FileWriter> writer;  // opened when the contents have been checked
  write(file.string(), contents, [&](std::span<const std::byte> bytes) {
    if (!writer) writer.emplace(file);
    writer->append(bytes);
  });
  writer->commit();
}

std::string safetensors_bytes(const TensorFile& contents, const std::string& name) {
  std::string bytes;
  write(name, contents, [&](std::span<const std::byte> piece) {
    if (!piece.empty()) bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  return bytes;
}

TensorFile load_safetensors(const std::filesystem::path& file) {
  return read(read_file(file), file.string());
}

TensorFile parse_safetensors(std::span<const std::byte> bytes, const std::string& name) {
  std::shared_ptr<Buffer> buffer = host().allocate(bytes.size());
  if (!bytes.empty()) std::memcpy(buffer->data(), bytes.data(), bytes.size());
  return read(buffer, name);
}

}  // namespace lockstep
