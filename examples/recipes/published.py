# ruff: noqa: E501
"""What the paper reports (Wang et al. 2021, tables 1 to 3).

Mean and standard deviation of five runs; where it gives no deviation, None.
"""

Figure = tuple[float, float | None]


def _parsed(text: str, num_keys: int) -> dict[tuple, dict[str, Figure]]:
    """Lines of keys and figures under a line of methods -> both by name."""
    header, *lines = text.strip().splitlines()
    found: dict[tuple, dict[str, Figure]] = {}
    for words in map(str.split, lines):
        key = tuple(int(w) if w.isdigit() else w for w in words[:num_keys])
        figures = zip(header.split(), words[num_keys:], strict=True)
        found[key] = {
            method: _figure(word) for method, word in figures if word != "-"
        }
    return found


def _figure(word: str) -> Figure:
    mean, _, deviation = word.partition("±")
    return float(mean), float(deviation) if deviation else None


# (model, dataset) -> method -> test error, %.
TABLE1 = _parsed(
    """
                              single     sse        ssb        fge        cbnn
resnet110 cifar10             5.63       5.41       5.61       5.50       5.25
resnet110 cifar100            27.67±0.25 24.27±0.26 27.09±0.35 26.21±0.23 23.51±0.20
resnet110 tiny-imagenet       45.10±0.36 39.08±0.34 43.68±0.49 41.16±0.31 38.14±0.22
densenet40 cifar10            5.13       4.78       5.13       4.82       4.78
densenet40 cifar100           23.15±0.22 21.45±0.29 22.59±0.31 22.07±0.28 20.66±0.17
densenet40 tiny-imagenet      38.24±0.34 36.35±0.30 37.99±0.44 37.72±0.27 34.28±0.20
efficientnet-b0 cifar10       3.88       3.56       3.87       3.68       3.37
efficientnet-b0 cifar100      20.87±0.25 19.70±0.25 20.12±0.41 19.58±0.24 18.06±0.20
efficientnet-b0 tiny-imagenet 34.50±0.35 33.02±0.32 34.02±0.46 32.76±0.31 31.16±0.26
efficientnet-b0 imagenet      23.70±0.21 23.51±0.24 23.75±0.35 23.43±0.22 22.69±0.19
efficientnet-b3 cifar10       3.45       3.30       3.43       3.27       3.28
efficientnet-b3 cifar100      17.28±0.22 16.84±0.29 17.25±0.32 16.96±0.24 16.07±0.13
efficientnet-b3 tiny-imagenet 31.86±0.30 31.01±0.31 31.49±0.42 30.97±0.30 29.85±0.23
efficientnet-b3 imagenet      18.30±0.15 19.16±0.22 19.59±0.34 18.68±0.20 17.55±0.14
""",
    num_keys=2,
)

# (dataset, accuracy in percent) -> method -> hours with EfficientNet-B0, on an
# Nvidia Tesla P40.
TABLE2 = _parsed(
    """
                              single     sse        ssb        pe         cbnn
cifar10 60                    0.38       0.38       0.39       0.72       0.36
cifar10 80                    0.78±0.12  0.75±0.10  0.76±0.10  2.13±0.34  0.68±0.07
cifar10 90                    5.05±0.55  3.92±0.21  4.22±0.38  10.13±0.78 3.62±0.15
cifar100 40                   0.91±0.08  0.87±0.08  0.99±0.09  2.11±0.11  0.85±0.07
cifar100 60                   2.71±0.12  2.54±0.11  2.62±0.12  7.78±1.23  2.33±0.10
cifar100 70                   7.47±0.79  5.16±0.31  5.67±0.30  17.32±1.30 4.82±0.22
""",
    num_keys=2,
)

# (model, dataset, treatment) -> method -> test error, %.
TABLE3 = _parsed(
    """
                                           single     sse        ssb        fge        cbnn
efficientnet-b0 cifar100 original          29.19      28.27      28.66      28.39      24.39
efficientnet-b0 cifar100 thresholding      26.93      25.88      26.51      26.43      -
efficientnet-b0 cifar100 oversampling      27.55±0.30 26.14±0.42 27.18±0.33 26.83±0.29 -
efficientnet-b0 tiny-imagenet original     45.25      43.79      44.98      43.77      40.23
efficientnet-b0 tiny-imagenet thresholding 42.58      41.26      42.47      41.03      -
efficientnet-b0 tiny-imagenet oversampling 43.12±0.67 42.06±0.65 43.13±0.69 41.78±0.55 -
efficientnet-b3 cifar100 original          27.08      26.49      26.78      26.23      22.98
efficientnet-b3 cifar100 thresholding      25.01      24.56      24.89      24.16      -
efficientnet-b3 cifar100 oversampling      25.86±0.30 25.11±0.33 25.46±0.39 24.86±0.34 -
efficientnet-b3 tiny-imagenet original     43.34      42.26      42.99      42.58      39.02
efficientnet-b3 tiny-imagenet thresholding 41.33      40.47      41.30      41.29      -
efficientnet-b3 tiny-imagenet oversampling 42.01±0.60 40.36±0.45 41.76±0.59 41.12±0.48 -
""",
    num_keys=3,
)
