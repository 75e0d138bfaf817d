#!/usr/bin/env python3
"""Convert the ratings of MovieLens 100K, as shipped in the wheel of RecBole, to a log for `--environment replay:`.

usage: ratings.py recbole-1.2.1-py3-none-any.whl > ratings.csv

Users with an even number provide statistics of the films. Users with an odd number are the devices: their first ten
ratings describe their taste, and the others form decision sets of ten films. The reward of a film is (rating - 3) / 2.
"""

import csv
import io
import math
import random
import sys
import zipfile

SET = 10
FIRST = 10
PRIOR = 5  # strength with which means of few ratings shrink to the mean above them


def table(archive, kind):
    text = io.TextIOWrapper(archive.open(f"recbole/dataset_example/ml-100k/ml-100k.{kind}"), "utf-8")
    rows = csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE)
    next(rows)
    return list(rows)


class Means:
    """Means by key, each shrunk to a default."""

    def __init__(self):
        self.sums = {}

    def add(self, key, value):
        total, count = self.sums.get(key, (0.0, 0))
        self.sums[key] = (total + value, count + 1)

    def count(self, key):
        return self.sums.get(key, (0.0, 0))[1]

    def mean(self, key, default):
        total, count = self.sums.get(key, (0.0, 0))
        return (total + PRIOR * default) / (count + PRIOR)


def main():
    with zipfile.ZipFile(sys.argv[1]) as archive:
        users = {row[0]: (row[2], int(row[1]) // 15, row[3]) for row in table(archive, "user")}
        films = {row[0]: (row[2], row[3].split()) for row in table(archive, "item")}
        ratings = [(int(time), user, film, (float(rating) - 3) / 2)
                   for user, film, rating, time in table(archive, "inter")]
    ratings.sort()
    by_film, by_group, by_user = Means(), [Means(), Means(), Means()], {}
    overall, count = 0.0, 0
    for _, user, film, reward in ratings:
        if int(user) % 2:
            by_user.setdefault(user, []).append((film, reward))
            continue
        overall, count = overall + reward, count + 1
        by_film.add(film, reward)
        for means, group in zip(by_group, users[user]):
            means.add((film, group), reward)
    overall /= count

    rows = []
    for user, rated in sorted(by_user.items(), key=lambda entry: int(entry[0])):
        taste = Means()
        for film, reward in rated[:FIRST]:
            for genre in films[film][1]:
                taste.add(genre, reward - by_film.mean(film, overall))
        rest = rated[FIRST:]
        random.Random(int(user)).shuffle(rest)
        for start in range(0, len(rest) - SET + 1, SET):
            for film, reward in rest[start:start + SET]:
                year, genres = films[film]
                mean = by_film.mean(film, overall)
                x = [1.0, mean]
                x += [means.mean((film, group), mean) - mean for means, group in zip(by_group, users[user])]
                x.append(math.log1p(by_film.count(film)) / 6 - 0.5)
                x.append((int(year) - 1980) / 50 if year.isdigit() else 0.0)
                x.append(sum(taste.mean(genre, 0.0) for genre in genres) / max(len(genres), 1))
                rows.append((user, start // SET, x, reward))

    # Each feature has at most the range [-1, 1] / sqrt(8), so that the norm is at most 1.
    largest = [max(abs(row[2][j]) for row in rows) * math.sqrt(8) * 1.000001 for j in range(8)]
    print("device,step," + ",".join(f"x_{j}" for j in range(1, 9)) + ",reward")
    for user, step, x, reward in rows:
        print(f"{user},{step}," + ",".join(f"{a / b:.6f}" for a, b in zip(x, largest)) + f",{reward:g}")


if __name__ == "__main__":
    main()
