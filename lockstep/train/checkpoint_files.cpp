#include "lockstep/train/checkpoint_files.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/tensor/host_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

void reach(const CheckpointPlace& place, std::string_view stage) {
  if (place.on_stage) place.on_stage(stage);
}

fs::path folder_with(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

std::uint64_t number_in(const Metadata& metadata, const char* key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? 0 : std::stoull(found->second);
}

// "checkpoint.g3-s120.safetensors" for "checkpoint.safetensors".
fs::path name_of_generation(const fs::path& file, std::uint64_t generation, std::uint64_t step) {
  fs::path own = file;
  own.replace_filename(fmt::format("{}.g{}-s{}{}", file.stem().string(), generation, step,
                                   file.extension().string()));
  return own;
}

// The generation in such a name.
std::optional<std::uint64_t> generation_in(const std::string& name, const fs::path& file) {
  const std::string prefix = file.stem().string() + ".g";
  const std::string suffix = file.extension().string();
  if (!name.starts_with(prefix) || !name.ends_with(suffix)) return std::nullopt;
  if (name.size() < prefix.size() + suffix.size()) return std::nullopt;
  const char* const end = name.data() + name.size() - suffix.size();
  std::uint64_t numbers[2] = {};
  const auto first = std::from_chars(name.data() + prefix.size(), end, numbers[0]);
  if (first.ec != std::errc() || !std::string_view(first.ptr, end).starts_with("-s")) {
    return std::nullopt;
  }
  const auto second = std::from_chars(first.ptr + 2, end, numbers[1]);
  if (second.ec != std::errc() || second.ptr != end) return std::nullopt;
  return numbers[0];
}

// Removes files of a checkpoint that have names of generations up to this one, except one.
void remove_names(const fs::path& file, std::uint64_t generation, const fs::path& except) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_with(file), ignored)) {
    const std::string name = entry.path().filename().string();
    const std::optional<std::uint64_t> theirs = generation_in(name, file);
    if (theirs && *theirs <= generation && name != except.filename()) {
      fs::remove(entry.path(), ignored);
    }
    // Of a writer that was killed: ".checkpoint.g3-s120.safetensors.<process>.<number>.tmp".
    std::string target = name.substr(name.starts_with('.') ? 1 : 0);
    for (int part = 0; part < 3; ++part) target.resize(std::min(target.size(), target.rfind('.')));
    if (generation_in(target, file)) remove_stale_temporaries(folder_with(file) / target);
  }
}

// Runs of a job in other folders have other keys. The path to a shared folder may differ between
// hosts, so only its last name counts.
std::string commit_key(const fs::path& file) {
  const fs::path whole = fs::absolute(file).lexically_normal();
  return fmt::format("checkpoint/{}/{}", whole.parent_path().filename().string(),
                     whole.filename().string());
}

struct CommitRecord {
  std::string file;  // its name, without the folder
  std::uint32_t checksum = 0;
  std::uint64_t generation = 0;
  std::uint64_t step = 0;
};

std::string text_of(const CommitRecord& record) {
  return json{{"file", record.file},
              {"crc32c", record.checksum},
              {"generation", record.generation},
              {"step", record.step}}
      .dump();
}

std::optional<CommitRecord> record_in(Membership& members, const fs::path& file) {
  const std::optional<std::string> text = members.committed(commit_key(file));
  if (!text) return std::nullopt;
  try {
    const json root = json::parse(*text);
    return CommitRecord{.file = root.at("file").get<std::string>(),
                        .checksum = root.at("crc32c").get<std::uint32_t>(),
                        .generation = root.at("generation").get<std::uint64_t>(),
                        .step = root.at("step").get<std::uint64_t>()};
  } catch (const json::exception&) {
    fail<DataError>("[checkpoint] {}: the record of its last commit is damaged: {}", file.string(),
                    *text);
  }
}

// One checkpoint on its way to its name: `write` writes a complete file with the name that it is
// given, and `discard` removes what else was written if the members refuse it.
struct Commit {
  fs::path file;
  bool aside = false;  // its values are not finite
  std::function<void(const fs::path&)> write;
  std::function<void()> discard = [] {};
};

// What a chief has written of a checkpoint before it is committed: names with its generation, which
// then only have to be renamed.
struct OwnNames {
  fs::path file;
  fs::path latest;  // empty: none is asked for

  void remove() const {
    std::error_code ignored;
    fs::remove(file, ignored);
    if (!latest.empty()) fs::remove(latest, ignored);
  }
};

OwnNames write_own(const Commit& commit, const CheckpointPlace& place, std::uint64_t generation,
                   std::uint64_t step) {
  OwnNames own{.file = name_of_generation(commit.file, generation, step), .latest = {}};
  commit.write(own.file);
  if (place.latest.empty()) return own;
  own.latest = name_of_generation(place.latest, generation, step);
  try {
    link_file(own.file, own.latest);
  } catch (...) {
    own.remove();
    throw;
  }
  return own;
}

// First removes the names of older generations: a chief that was stopped after its commit, and
// wakes up now or later, finds nothing to rename. One that renamed before is overwritten.
void give_names(const OwnNames& own, const Commit& commit, const CheckpointPlace& place,
                std::uint64_t generation, bool recorded) {
  remove_names(commit.file, generation, own.file);
  if (!own.latest.empty()) remove_names(place.latest, generation, own.latest);
  try {
    recorded ? link_file(own.file, commit.file) : rename_file(own.file, commit.file);
    if (!own.latest.empty()) rename_file(own.latest, place.latest);
  } catch (const DataError&) {
    const fs::path& missing = own.latest.empty() ? own.file : own.latest;
    std::error_code ignored;
    if (fs::exists(missing, ignored)) throw;
    fail<CommError>(
        "[checkpoint] {} was not replaced: {} is gone, since the chief of a newer generation has "
        "taken over",
        commit.file.string(), missing.string());
  }
}

void publish_by_members(Membership& members, const Metadata& metadata, const Commit& commit,
                        const CheckpointPlace& place) {
  const std::uint64_t generation = number_in(metadata, "generation");
  const std::uint64_t step = number_in(metadata, "step");
  const fs::path& named = place.latest.empty() ? commit.file : place.latest;
  const OwnNames own = write_own(commit, place, generation, step);
  reach(place, "commit");
  const std::optional<CommitRecord> before = record_in(members, named);
  const CommitRecord record{.file = own.file.filename().string(),
                            .checksum = header_checksum(own.file),
                            .generation = generation,
                            .step = step};
  // A worker that has joined a newer generation since must not commit for the older one, either.
  const bool current = members.generation() == generation;
  if (!current || !members.commit(commit_key(named), text_of(record))) {
    own.remove();
    commit.discard();
    fail<CommError>(
        "[checkpoint] {} was not replaced: worker {} is no member of the newest generation any "
        "more (it was one of generation {}), so its checkpoint of step {} is removed",
        commit.file.string(), members.worker(), generation, step);
  }
  reach(place, "publish");
  const bool recorded = members.committed(commit_key(named)).has_value();
  give_names(own, commit, place, generation, recorded);
  if (before && before->file != record.file) {
    std::error_code ignored;
    if (before->generation <= generation) fs::remove(folder_with(named) / before->file, ignored);
  }
}

void publish(const World& world, const Metadata& metadata, const Commit& commit,
             const CheckpointPlace& place) {
  const std::shared_ptr<Membership>& members = world.membership();
  if (members != nullptr && place.committed_by_members && !commit.aside) {
    publish_by_members(*members, metadata, commit, place);
  } else {
    reach(place, "commit");
    commit.write(commit.file);
    if (commit.aside) return;
    if (!place.latest.empty()) link_file(commit.file, place.latest);
  }
  if (place.on_committed) place.on_committed();
}

// What one worker writes.
struct OwnPart {
  TensorFile contents;
  std::vector<TensorSlice> slices;
};

OwnPart part_of(const Snapshot& snapshot) {
  OwnPart part{.contents = snapshot.contents, .slices = {}};
  for (std::size_t i = 0; i < snapshot.images.size(); ++i) {
    const VariableImage& image = snapshot.images[i];
    if (!snapshot.sliced) {
      part.contents.tensors[snapshot.names[i]] = image.value();
      continue;
    }
    std::vector<std::int64_t> begin(static_cast<std::size_t>(image.shape.rank()), 0);
    begin.front() = image.begin;
    part.slices.push_back({.name = snapshot.names[i],
                           .whole = image.shape,
                           .begin = std::move(begin),
                           .value = image.value()});
  }
  return part;
}

bool all_finite(const OwnPart& part) {
  TensorFile all;
  all.tensors = part.contents.tensors;
  for (const TensorSlice& slice : part.slices) all.tensors[slice.name] = slice.value;
  return first_not_finite(all).empty();
}

// What the workers agree on before they write slices.
struct SlicePlan {
  fs::path file;
  bool aside = false;
  std::int64_t save = 0;
};

SlicePlan agree_on_slices(World& world, const OwnPart& part, const CheckpointPlace& place) {
  const std::uint64_t generation = number_in(part.contents.metadata, "generation");
  const fs::path other = not_finite_name(place.file);
  const std::vector<std::string> told = world.gather_in_background([&] {
    const bool aside = place.keep_good && !all_finite(part);
    json mine = {{"aside", aside}};
    if (world.chief())
      mine["saves"] = {next_save(place.file, generation), next_save(other, generation)};
    return mine.dump();
  });
  SlicePlan plan;
  for (const std::string& each : told) plan.aside |= json::parse(each).at("aside").get<bool>();
  plan.file = plan.aside ? other : place.file;
  plan.save = json::parse(told.front()).at("saves").at(plan.aside ? 1 : 0).get<std::int64_t>();
  return plan;
}

// What every worker has written, as the chief sees it in the folder.
std::vector<SliceFile> slices_of_all(const World& world, const SlicePlan& plan) {
  std::vector<SliceFile> files;
  for (int w = 0; w < world.workers(); ++w) {
    const fs::path file = slice_file(plan.file, plan.save, w, world.workers());
    std::error_code ignored;
    if (!fs::exists(file, ignored)) {
      fail<DataError>(
          "[checkpoint] worker {} has written {}, but worker 0 does not find it: let all workers "
          "write to a folder that they share, or let the chief write alone",
          w, file.string());
    }
    files.push_back(slices_in(file));
  }
  return files;
}

void write_in_slices(World& world, const OwnPart& part, const CheckpointPlace& place) {
  const SlicePlan plan = agree_on_slices(world, part, place);
  const auto file_of = [&](int worker) {
    return slice_file(plan.file, plan.save, worker, world.workers());
  };
  std::error_code ignored;
  try {
    world.gather_in_background([&] {
      write_slices(file_of(world.worker()), part.slices);
      reach(place, "slices");
      return std::string();
    });
  } catch (...) {
    fs::remove(file_of(world.worker()), ignored);
    throw;
  }
  const auto discard = [&] {
    for (int w = 0; w < world.workers(); ++w) fs::remove(file_of(w), ignored);
  };
  world.gather_in_background([&] {
    if (!world.chief()) return std::string();
    try {
      const std::vector<SliceFile> files = slices_of_all(world, plan);
      publish(world, part.contents.metadata,
              {.file = plan.file,
               .aside = plan.aside,
               .write = [&](const fs::path& name) { write_index(name, part.contents, files); },
               .discard = discard},
              place);
    } catch (const CommError&) {
      throw;  // it was refused and discarded, or nobody knows whether it was committed
    } catch (...) {
      discard();
      throw;
    }
    remove_saves_before(plan.file, plan.save);
    return std::string();
  });
}

}  // namespace

void write_checkpoint(World& world, const Snapshot& snapshot, const CheckpointPlace& place) {
  reach(place, "write");
  if (!snapshot.sliced && !world.chief()) return;
  const OwnPart part = part_of(snapshot);
  if (snapshot.sliced) return write_in_slices(world, part, place);
  const bool aside = place.keep_good && !all_finite(part);
  publish(world, part.contents.metadata,
          {.file = aside ? not_finite_name(place.file) : place.file,
           .aside = aside,
           .write = [&](const fs::path& name) { save_safetensors(name, part.contents); }},
          place);
}

void remove_checkpoint(const fs::path& file) {
  remove_tensors(file);
  remove_names(file, std::numeric_limits<std::uint64_t>::max(), {});
}

fs::path committed_file(const World& world, const fs::path& file) {
  if (world.membership() == nullptr) return file;
  const std::optional<CommitRecord> record = record_in(*world.membership(), file);
  if (!record) return file;
  const fs::path own = folder_with(file) / record->file;
  std::error_code ignored;
  for (const fs::path& each : {own, file}) {
    if (fs::exists(each, ignored) && header_checksum(each) == record->checksum) return each;
  }
  fail<DataError>(
      "[load] {}: the last committed checkpoint is {}, of step {} and generation {}, but that file "
      "is missing or another one",
      file.string(), own.string(), record->step, record->generation);
}

std::vector<RowRange> rows_of_writer(const NamedVariables& variables, int writer, int writers) {
  const auto bytes_of = [](const Variable& variable) {
    return static_cast<std::int64_t>(size_of(variable.dtype)) * variable.shape.elements();
  };
  std::int64_t total = 0;
  for (const auto& [name, variable] : variables) {
    if (variable->shape.rank() > 0) total += bytes_of(*variable);
  }
  const std::int64_t begin = total / writers * writer + total % writers * writer / writers;
  const std::int64_t end =
      total / writers * (writer + 1) + total % writers * (writer + 1) / writers;
  std::vector<RowRange> ranges;
  std::int64_t before = 0;  // bytes of the tensors before this one
  for (const auto& [name, variable] : variables) {
    RowRange& range = ranges.emplace_back();
    const std::int64_t bytes = bytes_of(*variable);
    if (variable->shape.rank() == 0 || bytes == 0) continue;
    const std::int64_t rows = variable->shape[0];
    const std::int64_t row = bytes / rows;
    // A row belongs to the writer in whose part it begins.
    const auto first_row_at = [&](std::int64_t cut) {
      return std::clamp<std::int64_t>((cut - before + row - 1) / row, 0, cut < before ? 0 : rows);
    };
    range.begin = first_row_at(begin);
    range.count = first_row_at(end) - range.begin;
    before += bytes;
  }
  return ranges;
}

}  // namespace lockstep
