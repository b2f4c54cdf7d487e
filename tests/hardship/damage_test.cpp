// Damaged files are detected: an error names the file; never a crash, never silently other weights.
#include <array>
#include <filesystem>
#include <fstream>

#include "cli/idx_files.h"
#include "data/image_files.h"
#include "hardship/hardship.h"
#include "temporary_folder.h"

namespace lockstep::hardship {
namespace {

namespace fs = std::filesystem;

std::string read_all(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(stream)), {});
}

void write_all(const fs::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

// Damages bytes in one of the ways in which disks and copies do.
std::string damaged(std::string bytes, std::mt19937_64& random) {
  const std::size_t at = below(random, std::max<std::size_t>(1, bytes.size()));
  switch (below(random, 6)) {
    case 0:  // one bit
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(random, 8)));
      break;
    case 1:  // truncated
      bytes.resize(at);
      break;
    case 2:  // a block of zeros
      for (std::size_t i = at; i < std::min(bytes.size(), at + 512); ++i) bytes[i] = 0;
      break;
    case 3:  // bytes inserted
      bytes.insert(at, std::string(1 + below(random, 64), static_cast<char>(random())));
      break;
    case 4:  // bytes appended
      bytes += std::string(1 + below(random, 64), static_cast<char>(random()));
      break;
    default:  // deep nesting where JSON begins
      bytes.insert(std::min<std::size_t>(bytes.size(), 8), std::string(100'000, '['));
  }
  return bytes;
}

struct Victim {
  std::string file;
  std::vector<std::string> command;
  bool must_be_noticed = false;  // any change must be an error
};

TEST(Damage, IsDetectedAndNamed) {
  const TemporaryFolder folder;
  const fs::path root = folder.path();
  write_idx(root / "digits", {.train = 40, .test = 8});
  const Bytes picture = make_jpeg(40, 32);
  write_all(root / "picture.jpg",
            std::string(reinterpret_cast<const char*>(picture.data()), picture.size()));
  const Ended trained = Child(root, {"train", "--model", "mlp", "--data", "digits", "--epochs", "1",
                                     "--run-dir", "run"})
                            .wait(kLimit);
  ASSERT_EQ(trained.code, 0) << trained.output;
  const std::vector<Victim> victims = {
      {"run/checkpoint.safetensors", {"evaluate", "run"}, true},
      {"run/checkpoint.safetensors", {"train", "--resume", "run", "--epochs", "2"}, true},
      {"run/run.json", {"evaluate", "run"}},
      {"run/run.json", {"train", "--resume", "run", "--epochs", "2"}},
      {"run/metrics.csv", {"plot", "run"}},
      {"digits/train-images-idx3-ubyte",
       {"train", "--model", "mlp", "--data", "digits", "--steps", "2", "--run-dir", "again"}},
      {"digits/t10k-labels-idx1-ubyte", {"evaluate", "run"}},
      {"picture.jpg", {"predict", "run", "picture.jpg"}},
  };
  std::mt19937_64 random = generator();
  const std::uint64_t cases = number_from("LOCKSTEP_HARDSHIP_FILES", 48);
  for (std::uint64_t i = 0; i < cases && !HasFailure(); ++i) {
    const Victim& victim = victims[i % victims.size()];
    const std::string good = read_all(root / victim.file);
    const std::string bad = damaged(good, random);
    fs::copy(root / "run", root / "kept", fs::copy_options::recursive);
    write_all(root / victim.file, bad);
    const Ended ended = Child(root, victim.command).wait(kLimit);
    const std::string what = victim.file + ", case " + std::to_string(i);
    expect_orderly(ended, what);
    if (victim.must_be_noticed && bad != good) {
      EXPECT_EQ(ended.code, 2) << what << " went unnoticed\n" << ended.output;
      EXPECT_NE(ended.output.find("checkpoint.safetensors"), std::string::npos) << ended.output;
    }
    // Restore everything.
    fs::remove_all(root / "run");
    fs::remove_all(root / "again");
    fs::rename(root / "kept", root / "run");
    if (!victim.file.starts_with("run/")) write_all(root / victim.file, good);
  }
}

}  // namespace
}  // namespace lockstep::hardship
