// Files of records as data sets: TFRecord, text and CSV, plain or compressed with gzip, several one
// after the other or some at once. Damage names the file and the record.
#pragma once

#include <filesystem>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/sources/csv.h"
#include "lockstep/data/sources/example.h"
#include "lockstep/data/sources/text.h"
#include "lockstep/data/sources/tfrecord.h"

namespace lockstep {

struct RecordFilesOptions {
  // Files read in turns, a record of each: more than one mixes them before any shuffling, and
  // several can be read at once.
  int cycle = 1;
  int parallel = 1;  // of these, read at once, or AUTOTUNE
  OnError on_error = OnError::Raise;
};

// The files with these endings in a folder, sorted. DataError where the folder has none.
std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder,
                                            const std::vector<std::string>& endings);

// {record}: u8, of any length.
Dataset read_tfrecords(std::vector<std::filesystem::path> files, RecordFilesOptions options = {},
                       TFRecordOptions format = {});
// {line}: u8, of any length.
Dataset read_text_lines(std::vector<std::filesystem::path> files, RecordFilesOptions options = {},
                        TextOptions format = {});
// One component for each of the format's. The first file is opened at once, for its columns.
Dataset read_csv(std::vector<std::filesystem::path> files, RecordFilesOptions options = {},
                 CsvOptions format = {});

// The tensors of the features of tf.Examples in TFRecord files. `parallel` of the options also says
// how many records are parsed at once.
Dataset read_examples(std::vector<std::filesystem::path> files, std::vector<FeatureSpec> features,
                      RecordFilesOptions options = {}, TFRecordOptions format = {});

namespace datasets {

// {image, label} of TFRecord files of tf.Examples with an encoded JPEG or PNG ("image/encoded",
// "image" or "image_raw") and an integer ("image/class/label" or "label"), as TensorFlow's own data
// sets are stored: {encoded bytes, i32 label}. DataError where the first record has no such pair.
Dataset image_examples(std::vector<std::filesystem::path> files, RecordFilesOptions options = {});

}  // namespace datasets
}  // namespace lockstep
