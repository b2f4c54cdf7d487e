// Training under limits on memory (ulimit -v), from too little to start to enough: wherever memory
// runs out, it ends with a sentence and never by a signal.
#include <fstream>

#include "data/image_files.h"
#include "hardship/hardship.h"
#include "sanitized.h"
#include "temporary_folder.h"

namespace lockstep::hardship {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

void write_images(const std::filesystem::path& folder) {
  for (const char* part : {"train", "validation"}) {
    for (const char* label : {"cat", "dog"}) {
      const std::filesystem::path images = folder / part / label;
      std::filesystem::create_directories(images);
      for (int i = 0; i < 6; ++i) {
        const bool jpeg = i % 2 == 0;
        const Bytes bytes =
            jpeg ? make_jpeg(40 + i, 48) : make_png(40 + i, 48, {}, smooth_picture(40 + i, 48, 3));
        std::ofstream(images / (std::to_string(i) + (jpeg ? ".jpg" : ".png")), std::ios::binary)
            .write(reinterpret_cast<const char*>(bytes.data()),
                   static_cast<std::streamsize>(bytes.size()));
      }
    }
  }
}

TEST(LittleMemory, EndsTrainingOnImageFilesWithASentence) {
#ifdef LOCKSTEP_SANITIZED
  GTEST_SKIP() << "a sanitizer needs more address space than any limit here";
#endif
  const TemporaryFolder folder;
  write_images(folder / "images");
  // Find the least that the program's libraries need: with less, the system cannot start it.
  std::uint64_t least = 32;
  while (Child(folder.path(), {"--version"}, least * kMiB).wait(kLimit).code != 0) {
    least += 16;
    ASSERT_LT(least, 1024u) << "MiB are not enough to start";
  }
  // From limits at which memory runs out up to the first that is enough, which depends on the
  // number of cores: every thread needs memory.
  const std::uint64_t step = number_from("LOCKSTEP_HARDSHIP_MEMORY_STEP", 80);
  int failed = 0;
  bool succeeded = false;
  for (std::uint64_t limit = least + 16; !succeeded; limit += step) {
    ASSERT_LT(limit, 16384u) << "MiB are not enough to train";
    const Ended ended = Child(folder.path(),
                              {"train", "--model", "lenet", "--data", "images", "--image-size",
                               "32", "--batch", "4", "--epochs", "1", "--run-dir", "run"},
                              limit * kMiB)
                            .wait(kLimit);
    const std::string what = "train in " + std::to_string(limit) + " MiB";
    expect_orderly(ended, what);
    succeeded = ended.code == 0;
    failed += succeeded ? 0 : 1;
    std::filesystem::remove_all(folder / "run");
    if (HasFailure()) return;
  }
  EXPECT_GT(failed, 0);
}

}  // namespace
}  // namespace lockstep::hardship
